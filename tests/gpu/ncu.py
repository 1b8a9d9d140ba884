"""Bytes of the card's memory that the kernels of a `cairn bench update` move, by the card's own counters.

    ncu ... --csv --page raw cairn bench update ... | ncu.py PARAMS PASSES

prints a note a kernel: bytes a parameter, and GB/s of the time that its launches took. PASSES: over all parameters.
"""

import collections
import csv
import sys

READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6,
         "ms": 1e-3, "msecond": 1e-3, "s": 1, "second": 1}


def main():
    params, passes = int(sys.argv[1]), int(sys.argv[2])
    lines = [line for line in sys.stdin if line.startswith('"')]  # the rest is what the bench and ncu say
    rows = list(csv.DictReader(lines))
    if not rows or READ not in rows[0]:
        print("skip: ncu counted nothing here: " + (lines[0].strip() if lines else "it printed no table"))
        return 77
    units, sums = rows[0], collections.defaultdict(collections.Counter)
    for row in rows[1:]:  # the first row has the units
        kernel = sums[row["Kernel Name"].split("(")[0]]
        kernel["launches"] += 1
        for name in (READ, WRITTEN, TIME):
            kernel[name] += float(row[name].replace(",", "")) * UNITS[units[name]]
    for name, kernel in sorted(sums.items()):
        moved = kernel[READ] + kernel[WRITTEN]
        print(f"note:   {name}: {moved / params / passes:.2f} bytes a parameter, "
              f"{kernel[READ] / params / passes:.2f} of them read, {moved / kernel[TIME] * 1e-9:.0f} GB/s, "
              f"{kernel['launches'] / passes:.1f} launches a pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
