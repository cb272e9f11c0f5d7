"""Settings that every test shares."""

import os

# A test run uses two processes on two cores: one thread each keeps them out of each other's way.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
