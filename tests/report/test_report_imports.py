import subprocess
import sys
from pathlib import Path

from synthetic_run import SyntheticRun


def test_a_report_needs_none_of_the_training_packages(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    code = f"""
import sys
from pathlib import Path
from rich.console import Console
from placebench.report.build import build_report
from placebench.report.show import show
from placebench.report.summary import summarize
build_report(Path({str(path)!r}))
show(Path({str(path)!r}), Console())
heavy = ("torch", "ray", "transformers", "vllm", "pynvml", "matplotlib.pyplot", "scipy.stats")
print("loaded:", [name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_printing_a_run_loads_no_figures(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    code = (
        "import sys; from placebench.cli import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code, "show", str(path)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines())
    assert "pandas" in loaded
    assert loaded.isdisjoint({"torch", "ray", "matplotlib", "jinja2", "scipy.stats"})


def test_importing_the_report_loads_nothing_heavy() -> None:
    heavy = ("numpy", "pandas", "matplotlib", "pydantic", "rich")
    code = f"import sys, placebench.report; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
