"""What a test with torch begins with, imported before torch: where there is none, the whole file is skipped."""

import functools
import shutil
import tempfile
import unittest
import warnings
from pathlib import Path

from cluster import Cluster
from runner import skip

try:
    import torch
except ImportError:
    skip("torch is not installed for this Python (Debian: python3-torch)")

import cairn

torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")


class ClusterCase(unittest.TestCase):
    """All its tests have one cluster of so many shards, and a session with it, which the first that asks for makes."""

    shards = 1
    both_ways = False

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(cls.shards, both_ways=cls.both_ways)
        cls.addClassCleanup(cls.cluster.stop)
        warnings.filterwarnings("ignore", message="running statistics")

    @property
    def session(self) -> cairn.Session:
        of = type(self)
        if "_session" not in vars(of):
            of._session = cairn.connect(of.cluster.endpoint)
            of.addClassCleanup(of._session.close)
        return of._session

    @property
    def name(self) -> str:
        """The test's: a job of its own."""
        return self.id().rsplit(".", 1)[1]

    def attach(self, model, optim=None, session=None, **options):
        """The model, to the job of the test's name, by its only worker if it is trained; closed at the test's end."""
        alone = {} if optim is None else {"rank": 0} if "workers" in options else {"rank": 0, "workers_min": 1}
        m = (session or self.session).attach(model, optim, **{"name": self.name, "timeout": 20, **alone, **options})
        self.addCleanup(m.close)
        return m

    def refused(self, words: str, call, kind=cairn.CairnError) -> str:
        """What the call says that fails so."""
        with self.assertRaisesRegex(kind, words) as raised:
            call()
        return str(raised.exception)

    def warned(self, call, of: str = "") -> list:
        """The warnings that have these words."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        return [one for one in seen if of in str(one.message)]

    @functools.cached_property
    def folder(self) -> Path:
        """The test's, gone at its end."""
        folder = Path(tempfile.mkdtemp(prefix="cairn-test-"))
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def connect(self, **options) -> cairn.Session:
        """Another session, closed at the test's end."""
        session = cairn.Session(self.cluster.endpoint, **options)
        self.addCleanup(session.close)
        return session
