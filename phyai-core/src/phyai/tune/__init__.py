"""Tuning: what is fastest on this machine, measured, as one more layer of the policy.

::

    store = Store.of(environment.device, os.environ)
    with Isolated(catalog, environment) as measurer:
        outcome = tune(op_tasks("gemm", catalog), catalog, policy, environment, measurer, store=store, seconds=60)
    policy = outcome.layer.onto(policy)             # under the user's rules, above the shipped default

    policy = with_tuning(policy, catalog, environment, os.environ).policy   # for `profile: autotune`

See ``docs/tuning.md``. Importing this imports no tensor library.
"""

from phyai.tune.isolation import InProcess, Isolated, Measured, Measurer
from phyai.tune.layer import TuningLayer, tuning_layer
from phyai.tune.measure import Settings
from phyai.tune.model import tune_model
from phyai.tune.profile import Tuned, with_tuning
from phyai.tune.record import Measurement, Result, TuneError
from phyai.tune.session import Outcome, tune
from phyai.tune.store import Store
from phyai.tune.task import Task, op_tasks, recording

__all__ = [
    "InProcess",
    "Isolated",
    "Measured",
    "Measurement",
    "Measurer",
    "Outcome",
    "Result",
    "Settings",
    "Store",
    "Task",
    "TuneError",
    "Tuned",
    "TuningLayer",
    "op_tasks",
    "recording",
    "tune",
    "tune_model",
    "tuning_layer",
    "with_tuning",
]
