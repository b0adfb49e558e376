"""The commands of `retinue`, their flag `--store`, and the line on stderr and exit code of each error."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from retinue.cli import agents, batch, context, cron, daemon, memory, runs, store, worktrees
from retinue.cli.acp import acp
from retinue.cli.approvals import approvals, approve, deny
from retinue.cli.buzz import buzz
from retinue.cli.call import call
from retinue.cli.chat import chat
from retinue.cli.demo import demo
from retinue.cli.doctor import doctor
from retinue.cli.eval import evaluate
from retinue.cli.init import init
from retinue.cli.mcp import mcp
from retinue.cli.mcp_servers import mcp_servers
from retinue.cli.models import models
from retinue.cli.output.terminal import (
    INTERRUPTED,
    answer_lines,
    discard,
    never_fail_to_print,
    say,
    say_text,
    say_wrapped,
)
from retinue.cli.record import record
from retinue.cli.replay import HELP as REPLAY_HELP
from retinue.cli.replay import replay
from retinue.cli.run import run
from retinue.cli.serve import serve
from retinue.cli.tools import tools
from retinue.cli.trust import trust
from retinue.cli.worker import worker, workers
from retinue.core.errors import BadInput, ConfigError, RetinueError, StoreCorrupt
from retinue.version import __version__

BAD_USAGE = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""Errors of the file system and not of the program: no space left, or no access."""
DAMAGE_HINT = "look at the whole store with: retinue store check; save what can be saved with: retinue store repair"
NUMBERS = {
    "is not a valid int range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid float": "is not a number",
}
"""What typer says of a value that is no number, and what a reader understands."""
WIDE = 72
WIDEST = 100
"""Columns that help needs for boxes, and the most that it uses without boxes."""

VARIABLE = "RETINUE_STORE"
WITHOUT_STORE = ("call", "buzz", "tools", "init", "demo", "copy")
"""Commands that use no store, or name theirs in another way."""


def add_store_option(app: typer.Typer) -> None:
    """Give the commands of an application the flag `--store`."""
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        if name not in WITHOUT_STORE:
            command.cls = StoreCommand
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is not None:
            add_store_option(inner)
            if inner.registered_callback is not None:
                group.cls = StoreGroup


class StoreCommand(TyperCommand):
    """A command with the flag `--store`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_option())

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the chosen store."""
        with _chosen_store(ctx):
            return super().invoke(ctx)


class StoreGroup(TyperGroup):
    """A group of commands that is a command itself, with the flag `--store`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_option())

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the chosen store."""
        with _chosen_store(ctx):
            return super().invoke(ctx)


def _option() -> TyperOption:
    return TyperOption(
        param_decls=["--store"],
        metavar="URL",
        help="The store: sqlite:PATH or postgresql://USER@HOST/DATABASE. [RETINUE_STORE]",
        expose_value=False,
        callback=_remember,
    )


def _remember(context: typer.Context, _: object, value: str | None) -> None:
    if value is not None:
        context.meta[VARIABLE] = value


@contextmanager
def _chosen_store(context: Any) -> Generator[None]:
    """Put the address of the store into the environment, for this process and those that it starts."""
    before = os.environ.get(VARIABLE)
    url = context.meta.get(VARIABLE) or before
    if not url:
        from retinue.app.settings_file import store_in_settings

        url = store_in_settings(context.params.get("config"))
    if url:
        from retinue.app.state_folder import choose_url

        choose_url(url)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


app = typer.Typer(
    name="retinue",
    help="Sub-agents for LLM agents: runs that delegate, with budgets, permissions and crash recovery.",
    epilog='Examples:\n\nretinue doctor\n\nretinue run "What is 6 times 7?"\n\nretinue runs',
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def retinue(
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Sub-agents for LLM agents: runs that delegate, with budgets, permissions and crash recovery."""
    if version:
        answer_lines(f"retinue {__version__}")
        raise typer.Exit


app.command(
    epilog='Examples:\n\nretinue run "Why is the build slow?"\n\nretinue run --model ollama:qwen3 - < task.txt\n\n'
    'retinue run --agent researcher --tools search_web --max-cost 0.50 "Compare A and B"'
)(run)
app.command(epilog="Example: retinue call < order.json")(call)
app.command(
    epilog="Example: retinue buzz gpt-4.1-mini https://api.openai.com/v1/chat/completions 'Say hello' "
    "--provider openai-chat --api-key-name OPENAI_API_KEY"
)(buzz)
app.command(
    epilog="Examples:\n\nretinue chat\n\nretinue chat --tools file_read,grep\n\nretinue chat --session audit\n\n"
    'printf "What is 6 times 7?\\nAnd half of it?\\n" | retinue chat'
)(chat)
app.command(epilog="Examples:\n\nretinue acp --model anthropic:claude-sonnet-5\n\nretinue acp --agent reviewer")(acp)
app.command(epilog="Examples:\n\nclaude mcp add team -- retinue mcp\n\nretinue mcp --tools file_read --max-cost 2")(mcp)
app.command(epilog="Examples:\n\nretinue serve\n\nretinue serve --host 0.0.0.0 --token-env RETINUE_TOKEN")(serve)
app.command("mcp-servers", epilog="Examples:\n\nretinue mcp-servers --json\n\nretinue mcp-servers --accept github")(
    mcp_servers
)
app.add_typer(runs.app)
app.command(
    help=REPLAY_HELP, epilog="Examples:\n\nretinue replay --list\n\nretinue replay --id ID\n\nretinue replay --tree"
)(replay)
app.command(
    epilog='Examples:\n\nretinue record tests/pool.jsonl -- run "Why is it slow?"\n\n'
    'retinue record --check tests/pool.jsonl -- run "Why is it slow?"'
)(record)
app.command(
    "eval", epilog="Examples:\n\nretinue eval cases.yaml\n\nretinue eval cases.yaml --repeat 5 --junit results.xml"
)(evaluate)
app.add_typer(batch.app)
app.command(epilog="Example: retinue approvals --json")(approvals)
app.command(epilog="Example: retinue approve 0badcafe/3/0")(approve)
app.command(epilog='Example: retinue deny 0badcafe/3/0 --note "not on a Friday"')(deny)
app.add_typer(context.app)
app.add_typer(memory.app)
app.add_typer(cron.app)
app.add_typer(daemon.app)
app.command(
    epilog="Examples:\n\nretinue worker --store postgresql://db/retinue\n\nretinue worker --concurrency 32 --tag gpu"
)(worker)
app.command(epilog="Example: retinue workers --json")(workers)
app.add_typer(store.app)
app.command(epilog="Examples:\n\nretinue models\n\nretinue models anthropic --json")(models)
app.add_typer(worktrees.app)
app.add_typer(agents.app)
app.command(epilog="Example: retinue tools --json")(tools)
app.command(epilog="Example: retinue init && retinue doctor")(init)
app.command(epilog="Examples:\n\nretinue trust\n\nretinue trust ops.toml --yes")(trust)
app.command(epilog="Example: retinue doctor --json")(doctor)
app.command(epilog="Example: retinue demo")(demo)
add_store_option(app)


def main(arguments: Sequence[str]) -> int:
    never_fail_to_print()
    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        from retinue.dialects.registry import rust_programs
        from retinue.telemetry.logs import turn_on_from

        turn_on_from(os.environ, sys.stderr, programs=rust_programs, tracebacks=verbose)
        columns = typer.get_terminal_size().columns
        app.rich_markup_mode = "rich" if _can_show_panels(columns) else None
        code = typer.main.get_command(app).main(
            list(arguments), prog_name="retinue", standalone_mode=False, terminal_width=min(columns, WIDEST)
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        _print_usage(error)
        return error.exit_code
    except typer.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return 1
    except ConfigError as error:
        first, *others = map(str, error.problems)
        say_wrapped(f"error: {first}", *others)
        return BAD_USAGE
    except StoreCorrupt as error:
        say_wrapped(f"error: {error}", *([] if "retinue store" in str(error) else [DAMAGE_HINT]))
        return 1
    except RetinueError as error:
        say_wrapped(f"error: {error}")
        return BAD_USAGE if isinstance(error, BadInput) else 1
    except OSError as error:
        if error.errno in FULL:
            discard(sys.stdout)
            say_wrapped(f"error: cannot write: {error.strerror}; runs that have ended are stored: see retinue runs")
        elif error.errno in CLOSED and error.filename is not None and not verbose:
            say_wrapped(f"error: {error.filename}: {error.strerror} (-v shows where)")
        elif _folder_is_gone():
            say_wrapped("error: the current folder does not exist any more: change to another one")
            return BAD_USAGE
        else:
            _print_bug(error, verbose)
        return 1
    except Exception as bug:
        _print_bug(bug, verbose)
        return 1


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _can_show_panels(columns: int) -> bool:
    """Whether help is drawn with boxes; they would cut the names of flags on a narrow terminal."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and columns >= WIDE


def _print_usage(error: typer.TyperException) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":  # a class that typer keeps to itself
        if message := error.format_message():  # with boxes it is printed already
            say(*message.split("\n"))
        return
    where = getattr(getattr(error, "ctx", None), "command_path", None) or "retinue"
    message = error.format_message()
    for words, plain in NUMBERS.items():
        message = message.replace(words, plain)
    say_wrapped(f"error: {message}", f"Try '{where} --help' for help.")


def _print_bug(bug: Exception, verbose: bool) -> None:
    if verbose:
        import traceback

        say_text("".join(traceback.format_exception(bug)).rstrip("\n"))
    say_wrapped(
        f"error: this is a bug in retinue: {type(bug).__name__}: {bug}" + ("" if verbose else " (-v shows where)")
    )
