/* cairn.import_checkpoint of a file of torch.save with both moments, by one worker, against direct reads of a
 * file of as many bytes. */
#include <string.h>

#include "client/ctl/bench/snapshot/snapshot.h"
#include "client/ctl/bench/snapshot/torch.h"

/* argv: folder, elements. The file is made by the first run, and is not in the page cache. */
static const char import_script[] =
    "import os, sys, time, torch, cairn\n"
    "folder, elems, count = sys.argv[1], int(sys.argv[2]), 16\n"
    "path = folder + '/import.pt'\n"
    "names = [f't{i}' for i in range(count)]\n"
    "model = torch.nn.ParameterDict({n: torch.ones(elems // count) for n in names})\n"
    "if not os.path.exists(path):\n"
    "    moments = {i: {'step': torch.tensor(10.), 'exp_avg': torch.full((elems // count,), .1),\n"
    "                   'exp_avg_sq': torch.full((elems // count,), .2)} for i in range(count)}\n"
    "    groups = [{'lr': 1e-3, 'params': list(range(count))}]\n"
    "    torch.save({'model': model.state_dict(),\n"
    "                'optimizer': {'state': moments, 'param_groups': groups}}, path)\n"
    "fd = os.open(path, os.O_RDONLY)\n"
    "os.fsync(fd)\n"
    "os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
    "os.close(fd)\n"
    "session = cairn.connect()\n"
    "begin = time.monotonic()\n"
    "m = cairn.import_checkpoint(session, path, model, cairn.AdamW(lr=1e-3), names=names,\n"
    "                            name='bench.snapshot')\n"
    "took = time.monotonic() - begin\n"
    "m.close()\n"
    "print(took, os.path.getsize(path), flush=True)\n";

/* GB/s of the file's bytes. */
static double import_once(void *context)
{
    struct snapshot_bench *b = context;
    double numbers[2]; // seconds, bytes
    const int ran = cairn_bench_torch_run(b->local, import_script, snapshot_elems(b), 1, numbers);
    if (ran == 0)
        (void)cairn_ctl_fail(CAIRN_ERR_IO, "cairn.import_checkpoint failed, of %s in %s",
                             cairn_ctl_bytes(snapshot_bytes(b)), b->local->folder);
    if (ran <= 0) return 0;
    return cairn_bench_save_drop_job(&b->saver) ? numbers[1] * 1e-9 / numbers[0] : 0;
}

static double read_raw(void *context)
{
    struct snapshot_bench *b = context;
    return cairn_bench_disk_read(&b->disk, snapshot_bytes(b));
}

int snapshot_import(struct snapshot_bench *b)
{
    static const char import_test[] = "import torch, cairn\nprint(1, 1, flush=True)\n";
    double numbers[2];
    const int is_there = cairn_bench_torch_run(b->local, import_test, 0, 1, numbers);
    if (is_there > 0) return cairn_bench_alternate(b->result, 0.001, import_once, read_raw, b);
    if (is_there < 0) return 1;
    if (b->ctl->bench.only != NULL)
        return cairn_ctl_fail(CAIRN_ERR_NOT_FOUND,
                              "no python3 has torch and cairn; PYTHONPATH says where they are");
    fprintf(stderr, "skip: import: no python3 has torch and cairn\n");
    return -1;
}
