"""Stand-ins with the shape of the frameworks' timers, and a job that uses each of them."""

# Modules of the frameworks that are hooked, each with a timer of its form; `use` in `job.py` runs them.
STAND_INS = {
    "verl/utils/profiler/performance.py": """
from contextlib import contextmanager
def _timer(name, timing_raw):
    timing_raw[name] = 1.0
    yield "verl"
marked_timer = contextmanager(lambda name, raw: (yield from _timer(name=name, timing_raw=raw)))
""",
    "verl/single_controller/base/decorator.py": """
def register(mode=None):
    def decorator(function):
        function.mode = mode
        return function
    return decorator
""",
    "verl/utils/torch_functional.py": """
def logprobs_from_logits(logits, labels):
    return logprobs_from_logits_v2(logits=logits, labels=labels)
def logprobs_from_logits_v2(logits, labels):
    return [logits, labels]
""",
    "trl/extras/profiling.py": """
class ProfilingContext:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        return self
    def __exit__(self, *raised):
        return False
""",
    "transformers/trainer.py": """
class Trainer:
    class state:
        global_step = 0
    def training_step(self):
        self.state.global_step += 1
        return 7
    def _maybe_log_save_evaluate(self, *loss, learning_rate=None):
        return loss
    def log(self, logs, start_time=None):
        return logs
    def evaluate(self):
        return None
    def _save_checkpoint(self):
        return None
""",
    "accelerate/optimizer.py": """
class AcceleratedOptimizer:
    def step(self):
        raise ValueError("no gradients")
""",
    "openrlhf/trainer/ray/ppo_critic.py": """
class Critic:
    def fit(self):
        return self.forward()
    def forward(self):
        return "values"
class CriticModelActor:  # as behind @ray.remote
    class __ray_metadata__:
        modified_class = Critic
""",
    "skyrl/train/utils/utils.py": """
class Timer:
    __slots__ = ("message",)
    def __init__(self, message):
        self.message = message
    def __enter__(self):
        return None
    def __exit__(self, *raised):
        return True
    async def __aenter__(self):
        return None
    async def __aexit__(self, *raised):
        return None
""",
    "nemo_rl/utils/timer.py": """
class Timer:
    def start(self, label):
        self.running = label
    def stop(self, label):
        if self.running != label:
            raise ValueError(label)
""",
    "areal/utils/stats_tracker.py": """
from contextlib import contextmanager
class DistributedStatsTracker:
    @contextmanager
    def record_timing(self, key):
        yield key
DEFAULT_TRACKER = DistributedStatsTracker()
record_timing = DEFAULT_TRACKER.record_timing
""",
    "vllm/v1/engine/core.py": """
class Scheduler:
    left = 3
    def has_unfinished_requests(self):
        return self.left > 0
class EngineCore:
    def __init__(self):
        self.scheduler = Scheduler()
    def step(self):
        self.scheduler.left -= 1
        return self.scheduler.left
    def step_with_batch_queue(self):
        return self.step()
""",
    "vllm/v1/worker/gpu_worker.py": """
class Worker:
    def init_device(self):
        return 5
""",
    "sglang/srt/managers/scheduler.py": """
class Scheduler:
    def run_batch(self, batch):
        return batch
""",
    "slime/utils/timer.py": "class Timer: pass  # has another shape now",
    "open_instruct/rl_utils.py": "raise RuntimeError('broken installation')",
}

JOB = """
import asyncio, os, sys
from verl.utils.profiler.performance import marked_timer
raw = {}
with marked_timer("step", raw) as value:
    assert value == "verl" and raw == {"step": 1.0}

from verl.single_controller.base.decorator import register
class ActorWorker:
    @register(mode="all")
    def update_actor(self):
        return self.compute_log_prob()
    @register()
    def compute_log_prob(self):
        return 3
    @register()
    def init_model(self):
        return 4
    @register()
    async def update_weights(self):
        return 5
class Training:
    def __init__(self, kind):
        self.config = type("Config", (), {"model_type": kind})
    @register()
    def train_mini_batch(self):
        return 6
worker = ActorWorker()
assert ActorWorker.update_actor.mode == "all" and ActorWorker.update_actor.__name__ == "update_actor"
assert (worker.update_actor(), worker.init_model(), asyncio.run(worker.update_weights())) == (3, 4, 5)
assert Training("value_model").train_mini_batch() == Training("language_model").train_mini_batch() == 6

from verl.utils.torch_functional import logprobs_from_logits
class Logits:
    def __init__(self, dimensions):
        self.dim = lambda: dimensions
for logits in (Logits(3), Logits(2), Logits(2)):
    assert logprobs_from_logits(logits, 9) == [logits, 9]

from trl.extras.profiling import ProfilingContext
outer = ProfilingContext("vLLM.generate")
with outer:
    with outer:
        pass
from transformers.trainer import Trainer
trainer = Trainer()
assert trainer._maybe_log_save_evaluate(1) == (1,)  # before any step
assert trainer.training_step() == 7
assert trainer._maybe_log_save_evaluate(1, 2, learning_rate=3) == trainer._maybe_log_save_evaluate(1, 2) == (1, 2)
assert trainer.log({"eval_loss": 1}, 0.0) == {"eval_loss": 1}
assert trainer.log(logs={"loss": 2}, start_time=0.0) == {"loss": 2}
from accelerate.optimizer import AcceleratedOptimizer
try:
    AcceleratedOptimizer().step()
except ValueError as error:
    assert str(error) == "no gradients"
from openrlhf.trainer.ray.ppo_critic import CriticModelActor
assert CriticModelActor.__ray_metadata__.modified_class().fit() == "values"
from skyrl.train.utils.utils import Timer as SkyTimer
with SkyTimer("convert_to_training_input"):
    raise RuntimeError("the timer's own __exit__ swallows it")
async def generate():
    async with SkyTimer("generate"):
        pass
asyncio.run(generate())
from nemo_rl.utils.timer import Timer as NemoTimer
timer = NemoTimer()
timer.start(label="policy_training")
try:
    timer.stop("generation")
except ValueError:
    pass
timer.stop(label="policy_training")
from areal.utils import stats_tracker
with stats_tracker.record_timing(key="rollout") as key:
    assert key == "rollout"
from vllm.v1.engine.core import EngineCore
engine = EngineCore()
assert [engine.step(), engine.step_with_batch_queue(), engine.step()] == [2, 1, 0]
from sglang.srt.managers.scheduler import Scheduler
assert Scheduler().run_batch(8) == 8
import slime.utils.timer
try:
    import open_instruct.rl_utils
except RuntimeError as error:
    assert str(error) == "broken installation"

from placebench_attach import span
os.closerange(3, 100)  # as one that becomes a daemon does
mine = os.open(os.devnull, os.O_WRONLY)
with span("gen"):
    pass
child = os.fork()
with span("child" if child == 0 else "parent"):
    pass
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
