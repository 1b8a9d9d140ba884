"""A real cluster for a test: a coordinator and shards with a socket and a folder of their own, gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

BIN = Path(os.environ.get("CAIRN_BIN", Path(__file__).resolve().parents[3] / "build" / "bin"))
DEADLINE_S = 60


class Cluster:
    def __init__(self, shards: int = 1, *of_shards: str, both_ways: bool = False):
        """`of_shards`: more settings of each, KEY=VALUE. `both_ways`: trainers reach shards by mapped and by sealed,
        since shards and this process name their host; else by mapped alone."""
        self._of_shards = of_shards + (("fabric.host=here",) if both_ways else ())
        self._both_ways = both_ways
        if both_ways:
            os.environ["CAIRN_HOST"] = "here"
        self._folder = Path(tempfile.mkdtemp(prefix="cairn-python-"))
        self.weights = self._folder / "weights"  # where files of init_from may be
        self._daemons = []
        try:
            self._start(shards)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def _start(self, shards: int) -> None:
        (self._folder / "snapshots").mkdir()
        self.weights.mkdir()
        self.endpoint = self._daemon("coordinator", f"network.listen={self._folder}/coordinator.sock",
                                     f"cluster.shards={shards}", f"store.path={self._folder}/coordinator",
                                     f"snapshots.path={self._folder}/snapshots")
        for i in range(1, shards + 1):
            self._shard(i)

    def _shard(self, i: int) -> None:
        self._daemon(f"shard-{i}", f"shard.name=shard-{i}", f"shard.coordinator={self.endpoint}",
                     f"import.folders={self.weights}", "memory.limit=256MiB", f"memory.lock={self._folder}",
                     "compute.threads=1", *self._of_shards, program="cairn-shard")

    def lose_shard(self, i: int) -> None:
        """Kills it, and starts another one of its name, which has nothing."""
        dead = self._daemons[i]
        dead.kill()
        dead.wait()
        (self._folder / f"shard-{i}.ready").unlink()
        self._shard(i)
        self._daemons[i] = self._daemons.pop()

    def _daemon(self, name: str, *settings: str, program: str = "cairn-coordinator") -> str:
        ready, log = self._folder / f"{name}.ready", open(self._folder / f"{name}.log", "wb")
        arguments = [part for setting in settings for part in ("--set", setting)]
        daemon = subprocess.Popen([BIN / program, "--ready-file", ready, *arguments], stdout=log, stderr=log)
        log.close()
        self._daemons.append(daemon)
        deadline = time.monotonic() + DEADLINE_S
        while not (ready.exists() and ready.stat().st_size > 0):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not start: " + (self._folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.01)
        return ready.read_text().strip()

    def ctl(self, *arguments: str) -> dict:
        """What the command line prints with -o json."""
        done = subprocess.run([BIN / "cairn", "--endpoint", self.endpoint, *arguments, "-o", "json"], timeout=30,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"cairn {' '.join(arguments)}: {done.stderr}")
        return json.loads(done.stdout)

    def digest(self, job: str) -> str:
        return self.ctl("job", "digest", job)["content_root"]

    def stop(self) -> None:
        if self._both_ways:
            os.environ.pop("CAIRN_HOST", None)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
