"""Runs commands of the command line within the process of the tests."""

from tilewright.cli import main


def run(capsys, *arguments):
    """(exit code, standard output, standard error) of a command."""
    code = main([str(a) for a in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def error_of(capsys, *arguments):
    """The message of a command that is rejected."""
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert out == ""
    assert "Traceback" not in err
    return err.rstrip("\n")
