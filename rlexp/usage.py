"""What the command line says about itself. Free of torch, so that it answers at once."""

from __future__ import annotations

import shutil
import textwrap

from rlexp.config.compose import CHOICE_GROUPS, choices
from rlexp.options import (
    CollectOptions,
    EvalOptions,
    ExportOptions,
    InfoOptions,
    ListRunsOptions,
    MetricsOptions,
    PredictOptions,
    ReportOptions,
    ResumeOptions,
    usage,
)

HELP = """\
rlexp: reinforcement-learning experiments composed from configs

  rlexp [train] algo=NAME env=NAME KEY=VALUE…     train; every field can be overridden
  rlexp --multirun algo=ppo,dqn seed=1,2,3        one run for every combination
  rlexp --multirun sweep=seeds|optuna|… [launcher=joblib|slurm|ray] KEY=VALUE…
                                                  a preset or a search; several jobs at once
  rlexp resume RUN|SWEEP [checkpoint=last|best] [KEY=VALUE…]
                                                  continue exactly where it stopped
  rlexp eval RUN [episodes=20 checkpoint=last|best seed=0 render=false video=true|gif]
                                                  play episodes with the trained policy
  rlexp predict RUN [checkpoint=last|best]        observations as JSON lines in, actions out
  rlexp export RUN to=torch|onnx                  the policy as a program that needs no rlexp
  rlexp report RUNS… [-o report.html]             runs side by side as one page: curves, table, settings, videos
  rlexp metrics RUNS… [to=FILE.csv|FILE.parquet]  the metrics of many runs as one table
  rlexp collect RUN|random to=FILE|ID steps=N     play a policy and keep what happened as a dataset
  rlexp data info PATH [env=NAME plot=FILE.png]   what is in a dataset, and what is wrong with it
  rlexp list [algo|env|model|buffer|trainer|dataset|evaluator|logger|zoo|sweep|search|launcher|runs]
  rlexp bench speed|solve|zoo|… [--against sb3,d3rlpy]
                                                  measure this machine or presets; rlexp bench --help

RUN is a run directory or one of its checkpoints, RUNS are such directories or folders that hold some.
rlexp resume|eval|predict|export|report|metrics|collect|data|list --help lists all options.
A first run:                                                    rlexp algo=ppo env=cartpole
Show a composed config without running it:                      rlexp algo=ppo env=cartpole --cfg job
Go on with the agent of a run, in another loop:                 rlexp algo=iql trainer=mixed init_from=RUN …
Completion by the TAB key (zsh, fish: install=zsh, …):          eval "$(rlexp -sc install=bash)"
A folder of your own configs beside rlexp's:                    rlexp --config-dir DIR algo=MINE
"""

LIST_HELP = """\
rlexp list [algo|env|model|buffer|trainer|dataset|evaluator|logger|zoo|sweep|search|launcher] [--config-dir DIR]
                                            what can be composed

"""


def print_usage(command: str) -> None:
    """The help of a command, or of all of them with what can be composed."""
    kinds = {
        "eval": EvalOptions,
        "predict": PredictOptions,
        "resume": ResumeOptions,
        "collect": CollectOptions,
        "data": InfoOptions,
        "export": ExportOptions,
        "metrics": MetricsOptions,
        "report": ReportOptions,
    }
    if command in kinds:
        print(usage(kinds[command]))
    elif command == "list":
        print(LIST_HELP + usage(ListRunsOptions))
    else:
        print(HELP)
        print("What can be composed (rlexp list shows a line on each):")
        width = min(shutil.get_terminal_size((120, 24)).columns, 120)
        for group in CHOICE_GROUPS:
            print(_choices_of(group, width))


def _choices_of(group: str, width: int) -> str:
    """The choices of a group, wrapped; of those whose names follow from the others', how many there are."""
    names = list(choices(group))
    if group == "zoo":
        text = f"{len(names)} presets such as ppo_cartpole, sac_pendulum, iql_pendulum; rlexp list zoo: what they reach"
    elif group == "search" and names == list(choices("algo")):
        text = "one for every algo: what sweep=optuna varies"
    else:
        text = ", ".join(names)
    return textwrap.fill(
        text, width, initial_indent=f"  {group:<10} ", subsequent_indent=" " * 13, break_on_hyphens=False
    )
