"""What the command line says about itself. Free of torch, so that it answers at once."""

from __future__ import annotations

from rlexp.config.compose import CHOICE_GROUPS, choices
from rlexp.options import CollectOptions, EvalOptions, InfoOptions, PredictOptions, ResumeOptions, usage

HELP = """\
rlexp: reinforcement-learning experiments composed from configs

  rlexp [train] algo=NAME env=NAME KEY=VALUE…     train; every field can be overridden
  rlexp --multirun algo=ppo,dqn seed=1,2,3        one run for every combination
  rlexp resume RUN [checkpoint=last|best] [KEY=VALUE…]
                                                  continue a run exactly where it stopped
  rlexp eval RUN [episodes=20 checkpoint=last|best seed=0 render=false]
                                                  play episodes with the trained policy
  rlexp predict RUN [checkpoint=last|best]        observations as JSON lines in, actions out
  rlexp collect RUN|random to=FILE|ID steps=N     play a policy and keep what happened as a dataset
  rlexp data info PATH [env=NAME plot=FILE.png]   what is in a dataset, and what is wrong with it
  rlexp list [algo|env|model|buffer|trainer|dataset|evaluator|logger|zoo|runs]
  rlexp bench speed|startup|solve|scaling|profile [--against sb3,d3rlpy]
                                                  measure this machine; rlexp bench --help

RUN is a run directory or one of its checkpoints; rlexp resume|eval|predict|collect|data --help lists all options.
A first run:                                                    rlexp algo=ppo env=cartpole
Show a composed config without running it:                      rlexp algo=ppo env=cartpole --cfg job
Go on with the agent of a run, in another loop:                 rlexp algo=iql trainer=mixed init_from=RUN …
A folder of your own configs beside rlexp's:                    rlexp --config-dir DIR algo=MINE
"""

LIST_HELP = """\
rlexp list [algo|env|model|buffer|trainer|dataset|evaluator|logger|zoo] [--config-dir DIR]    what can be composed
rlexp list runs [FOLDER…]                   the runs below outputs/ (or other folders), how they stand, their results"""


def print_usage(command: str) -> None:
    """The help of a command, or of all of them with what can be composed."""
    kinds = {
        "eval": EvalOptions,
        "predict": PredictOptions,
        "resume": ResumeOptions,
        "collect": CollectOptions,
        "data": InfoOptions,
    }
    if command in kinds:
        print(usage(kinds[command]))
    elif command == "list":
        print(LIST_HELP)
    else:
        print(HELP)
        print("What can be composed (rlexp list shows a line on each):")
        for group in CHOICE_GROUPS:
            print(f"  {group:<9} {', '.join(choices(group))}")
