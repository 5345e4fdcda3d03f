"""A student and its card to the Hugging Face Hub, in one step."""

from __future__ import annotations

from pathlib import Path

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.folders import holds_student
from distilvec.system_errors import REMEDIES, number_of, system_problem

#: What a repository of a student never needs.
LEFT_OUT = [".distilvec*", "*/.distilvec*", "checkpoint-*", "optimizer.pt", "rng_state*.pth", "report/*"]


def push(
    folder: str | Path, repository: str, *, private: bool = False, message: str | None = None, token: str | None = None
) -> str:
    """Create the repository if it is missing, and upload the student's folder as one commit.

    Args:
        folder: of a student, or of the run whose student it is.
        repository: "name" or "organisation/name".
        private: of a new repository.
        message: of the commit.
        token: of the Hub; None = the one that `hf auth login` has saved, or the environment's `HF_TOKEN`.

    Returns:
        Where it is now.

    Raises:
        DistilvecError: there is no student in the folder, it has no card, or `repository` is no name.
        EnvironmentProblem: the Hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    student = _student(Path(folder))
    api = HfApi(token=token)
    try:
        where = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=where.repo_id,
            folder_path=student,
            commit_message=message or "Student distilled with distilvec",
            ignore_patterns=LEFT_OUT,
        )
    except HFValidationError as error:
        raise DistilvecError(
            "this is no name of a repository", where=repository[:200], remedy="Give NAME or ORGANISATION/NAME."
        ) from error
    except OfflineModeIsEnabled as error:
        raise EnvironmentProblem(
            "the Hub is switched off", where="HF_HUB_OFFLINE", remedy="Unset this environment variable."
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        does = "has a fault" if status >= 500 else "refuses"
        raise EnvironmentProblem(
            f"the Hub {does} (HTTP {status}: {str(error).splitlines()[0]})", where=repository, remedy=_remedy(status)
        ) from error
    except Exception as error:  # of whatever client the hub's package uses in its version
        if number_of(error) in REMEDIES:
            raise system_problem(error, "the student cannot be read", student) from error
        raise EnvironmentProblem(f"the Hub cannot be reached ({error})", where=repository) from error
    return str(where)


def _remedy(status: int) -> str:
    """Return what to do about an answer of the Hub."""
    if status in (401, 403):
        return "Log in with `hf auth login`, with a token that may write there."
    if status == 404:
        return "Check the name: is there such an organisation, and may your token see it?"
    if status in (408, 409, 412, 429) or status >= 500:
        return "Nothing is wrong here: start the same command again in some minutes."
    return "Check the name, and the folder that is pushed."


def _student(folder: Path) -> Path:
    """The folder of the student itself."""
    for place in (folder, folder / "student"):
        if holds_student(place):
            if not (place / "README.md").is_file():
                raise DistilvecError(
                    "this model has no card", where=str(place), remedy="Push the student of a run, which has one."
                )
            return place
    raise DistilvecError(
        "there is no student in this folder", where=str(folder), remedy="Give a run's folder, or its student."
    )
