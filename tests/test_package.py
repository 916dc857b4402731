"""The package as others get it: a wheel, with no extra installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import unmeasured

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = folder.glob("sinuflow-*.whl")
    return found


def test_the_wheel_works_without_extras(wheel, tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)]
    subprocess.run(install, check=True)
    script = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})

        class NoExtras:
            missing = {{"matplotlib", "PIL", "zuko", "scipy", "sklearn", "pandas", "pyarrow", "typer", "rich"}}
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in self.missing:
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, NoExtras())
        import torch, sinuflow
        assert sinuflow.__file__.startswith({str(tmp_path)!r}), sinuflow.__file__
        flow = sinuflow.SinusoidalFlow(2, blocks=1, hidden=(8,))
        x = flow().sample((3,))
        flow().log_prob(x).sum().backward()
        flow.save({str(tmp_path / "m.safetensors")!r})
        assert sinuflow.load({str(tmp_path / "m.safetensors")!r}).features == 2
        print("works", sinuflow.__version__)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, env=unmeasured()
    )
    assert done.stdout.startswith("works 0."), done.stderr
    assert (tmp_path / "sinuflow" / "py.typed").exists()


def test_importing_reads_no_network_and_no_extra():
    script = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise AssertionError('network at import')\n"
        "socket.socket.connect = refuse\n"
        "import sinuflow\n"
        "public = [getattr(sinuflow, name) for name in sinuflow.__all__ if name != 'SinusoidalDensity']\n"
        "print(sorted({'matplotlib', 'PIL', 'zuko', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_imports_without_pytorch_and_has_all_names_of_its_modules():
    script = (
        "import sys, sinuflow\n"
        "assert 'torch' not in sys.modules\n"
        "import sinuflow.cli.main\n"
        "assert 'torch' not in sys.modules\n"
        "assert set(sinuflow.__all__) <= {*dir(sinuflow), 'SinusoidalDensity'}\n"
        "assert sinuflow.fit is sinuflow.training.fit\n"
        "for name in sinuflow._SUBMODULES: getattr(sinuflow, name)\n"
        "try: sinuflow.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'sinuflow' has no attribute 'nothing'\n"
