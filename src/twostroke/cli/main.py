"""Entry point of the ``twostroke`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from twostroke.cli.batch import batch
from twostroke.cli.bench import bench_app
from twostroke.cli.calibrate import calibrate
from twostroke.cli.chat import chat
from twostroke.cli.checkpoints.models import models
from twostroke.cli.checkpoints.quantize import quantize
from twostroke.cli.flags import expand_units
from twostroke.cli.generate import generate
from twostroke.cli.help_pages import HelpPages
from twostroke.cli.inspect import inspect
from twostroke.cli.key import key
from twostroke.cli.kv import kv
from twostroke.cli.serving.route import route
from twostroke.cli.serving.serve import serve
from twostroke.cli.serving.up import up
from twostroke.cli.serving.worker import worker
from twostroke.cli.sizing.doctor import doctor
from twostroke.cli.sizing.lab import lab
from twostroke.cli.sizing.plan import plan
from twostroke.cli.sizing.simulate import simulate
from twostroke.cli.terminal import print_error, print_note
from twostroke.cli.trace import trace
from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.core.flags.vllm_flags import without_vllm_flags
from twostroke.server.version import package_version

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def build_app() -> App:
    """All commands."""
    app = App(
        name="twostroke",
        usage="Usage: twostroke COMMAND",
        help="Serves large language models: `twostroke serve` starts an OpenAI-compatible server.",
        help_format="plaintext",
        version=package_version,
        config=expand_units,
        help_formatter=HelpPages(),
        default_parameter=Parameter(allow_repeating=True),  # the last value counts
    )
    app.command(serve, usage="Usage: twostroke serve [MODEL] [NAME=MODEL ...] [OPTIONS]")
    app.command(worker, usage="Usage: twostroke worker [MODEL] [OPTIONS]")
    app.command(route, usage="Usage: twostroke route [MODEL] --worker HOST:PORT ... [OPTIONS]")
    app.command(up, usage="Usage: twostroke up --config FLEET.toml [OPTIONS]")
    app.command(chat, usage="Usage: twostroke chat [MODEL] [OPTIONS]")
    app.command(generate, usage="Usage: twostroke generate PROMPT [OPTIONS]")
    app.command(
        batch, usage="Usage: twostroke batch IN.jsonl -o OUT.jsonl [OPTIONS]", alias="run-batch"
    )
    app.command(trace, usage="Usage: twostroke trace RECORDING [OPTIONS]")
    app.command(inspect, usage="Usage: twostroke inspect RECORDING [OPTIONS]")
    app.command(key, usage="Usage: twostroke key NAME [OPTIONS]")
    app.command(simulate, usage="Usage: twostroke simulate [MODEL] [OPTIONS]")
    app.command(plan, usage="Usage: twostroke plan MODEL [OPTIONS]")
    app.command(lab, usage="Usage: twostroke lab [NAME ...] [OPTIONS]")
    app.command(doctor, usage="Usage: twostroke doctor [URL | RECORDING | MODEL] [OPTIONS]")
    app.command(kv, usage="Usage: twostroke kv MODEL [OPTIONS]")
    app.command(models, usage="Usage: twostroke models [MODEL] [OPTIONS]")
    app.command(quantize, usage="Usage: twostroke quantize MODEL -o FOLDER [OPTIONS]")
    app.command(calibrate, usage="Usage: twostroke calibrate [MODEL] [OPTIONS]")
    app.command(bench_app())
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the process's exit code."""
    app = build_app()
    try:
        arguments = without_vllm_flags(arguments, print_note)
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print_error(_one_line(str(error)), _help_hint(app, arguments))
        return EXIT_USAGE
    except TwostrokeError as error:
        print_error(error.message, error.hint)
        return EXIT_USAGE
    try:
        code = command(*bound.args, **bound.kwargs)
    except InvalidRequestError as error:
        print_error(error.message, error.hint or _help_hint(app, arguments))
        return EXIT_ERROR
    except TwostrokeError as error:
        print_error(error.message, error.hint)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has seen enough; flushing at exit must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def _one_line(message: str) -> str:
    # The hint leads to all commands; the library names only the first few.
    message = " ".join(message.split()).partition(" Available commands:")[0]
    return message[:1].lower() + message[1:].rstrip(".")


def _help_hint(app: App, arguments: Sequence[str]) -> str:
    words = ["twostroke"]
    for argument in arguments:
        if argument.startswith("-") or argument not in set(app):
            break
        words.append(argument)
        app = app[argument]
    return " ".join(words) + " --help shows what can be given"
