"""Composes each case from stdin (JSON) with Hydra and writes the results to stdout (JSON)."""

import copy
import datetime
import json
import os
import sys
import tempfile
import time
import warnings

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

NOW = datetime.datetime(2024, 2, 3, 4, 5, 6)


def tagged(value):
    """A value with the types that JSON does not have."""
    if isinstance(value, dict):
        return {"map": [[str(key), tagged(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return {"list": [tagged(item) for item in value]}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    return str(value)


def write_tree(files, root):
    for path, text in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as out:
            out.write(text)


def composed(case, conf):
    # The configuration of the case before must not be seen by this one.
    HydraConfig.instance().cfg = None
    with initialize_config_dir(version_base="1.3", config_dir=conf, job_name="llmprof-tui"):
        OmegaConf.register_new_resolver("now", lambda pattern: NOW.strftime(pattern), replace=True)
        if case["kind"] == "sweep":
            loader = GlobalHydra.instance().config_loader()
            overrides = OverridesParser.create(config_loader=loader).parse_overrides(case["overrides"])
            loader.validate_sweep_overrides_legal(overrides, run_mode=MULTIRUN, from_shell=False)
            return {"runs": [list(run) for run in BasicSweeper.split_arguments(overrides, None)[0]]}
        start = time.perf_counter()
        cfg = compose("config", overrides=case["overrides"], return_hydra_config=True)
        elapsed = time.perf_counter() - start
        HydraConfig.instance().set_config(cfg)
        job = copy.deepcopy(cfg)
        OmegaConf.set_readonly(job, False)
        OmegaConf.set_struct(job, False)
        del job["hydra"]
        choices = {
            key: value
            for key, value in OmegaConf.to_container(cfg.hydra.runtime.choices).items()
            if not key.startswith("hydra/")
        }
        return {
            "job": tagged(OmegaConf.to_container(job, resolve=True)),
            "unresolved": tagged(OmegaConf.to_container(job, resolve=False)),
            "choices": tagged(choices),
            "run_dir": tagged(cfg.hydra.run.dir),
            "job_name": tagged(cfg.hydra.job.name),
            "override_dirname": tagged(cfg.hydra.job.override_dirname),
            "task_overrides": tagged(OmegaConf.to_container(cfg.hydra.overrides.task)),
            "seconds": elapsed,
        }


def main():
    warnings.simplefilter("ignore")
    results = []
    for case in json.load(sys.stdin):
        try:
            if "conf" in case:
                results.append(composed(case, case["conf"]))
            else:
                with tempfile.TemporaryDirectory() as root:
                    write_tree(case["files"], root)
                    results.append(composed(case, root))
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"[:300]})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    from hydra.types import RunMode

    MULTIRUN = RunMode.MULTIRUN
    main()
