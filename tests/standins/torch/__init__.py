"""As much of torch as a workload without tensors needs, for tests of the worker on machines without torch."""

import os

__version__ = os.environ.get("STANDIN_TORCH", "2.9.0")


class OutOfMemoryError(RuntimeError):
    pass


class nn:
    class Module:
        def named_modules(self):
            return iter(())

        def modules(self):
            return iter(())

        def parameters(self):
            return iter(())


class cuda:
    @staticmethod
    def is_available():
        return False


def set_num_threads(_count):
    pass
