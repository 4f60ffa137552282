"""Worker processes for native code: started, watched and restarted by the Triton stub that owns them.

Triton never restarts a Python backend stub that dies, so image libraries and engines run one process further out.
"""

from python_backends.workers.supervisor import Reply, SupervisedWorker, WorkerSpec

__all__ = ["Reply", "SupervisedWorker", "WorkerSpec"]
