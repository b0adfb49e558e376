"""Contract of memory backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.tools.memory.backend import Memory, MemoryBackend, MemorySearch, Note, Recalled


def note(key: str, content: str = "something", *, agent: str = "me", category: str = "core", at: float = 1.0) -> Note:
    return Note(agent=agent, key=key, content=content, category=category, at=at, run_id="r", session_id="s")


def keys(recalled: list[Recalled]) -> list[str]:
    return [each.memory.key for each in recalled]


def everything(*agents: str) -> MemorySearch:
    return MemorySearch(agents=agents or ("me",), limit=100)


class MemoryContract:
    """Each test has a backend of its own."""

    def open_memory(self, folder: Path) -> MemoryBackend:
        """The backend under test; a lasting one has the same memories when it is opened in the same folder again."""
        raise NotImplementedError

    @pytest.fixture
    def memory(self, tmp_path: Path) -> MemoryBackend:
        return self.open_memory(tmp_path / "not there yet")

    def test_a_memory_has_its_agent_content_and_times(self, memory: MemoryBackend) -> None:
        stored = memory.store(note("color", "blue", category="daily", at=5.5))

        assert stored == Memory(
            id=stored.id,
            agent="me",
            key="color",
            content="blue",
            category="daily",
            created_at=5.5,
            updated_at=5.5,
            run_id="r",
            session_id="s",
        )
        assert memory.find("me", "color") == stored
        assert memory.recall(everything()) == [Recalled(stored)]

    def test_storing_under_the_same_key_replaces_the_memory(self, memory: MemoryBackend) -> None:
        first = memory.store(note("color", "blue", at=1.0))
        second = memory.store(Note(agent="me", key="color", content="red", category="custom", at=2.0, run_id="r2"))

        assert second == Memory(
            id=first.id,
            agent="me",
            key="color",
            content="red",
            category="custom",
            created_at=1.0,
            updated_at=2.0,
            run_id="r2",
        )
        assert memory.recall(everything()) == [Recalled(second)]
        assert memory.recall(MemorySearch(agents=("me",), query="blue")) == []
        assert keys(memory.recall(MemorySearch(agents=("me",), query="red"))) == ["color"]

    def test_a_note_that_may_have_been_stored_before_does_not_undo_a_later_one(self, memory: MemoryBackend) -> None:
        later = memory.store(note("color", "red", at=2.0))

        assert memory.store(note("color", "blue", at=1.0), again=True) == later
        assert memory.store(note("color", "green", at=1.0)).content == "green", "a clock may have been set back"

    def test_agents_have_their_own_memories_under_one_key(self, memory: MemoryBackend) -> None:
        mine = memory.store(note("color", "blue"))
        theirs = memory.store(note("color", "red", agent="you"))

        assert memory.recall(everything("me")) == [Recalled(mine)]
        assert memory.recall(everything("you", "you")) == [Recalled(theirs)]
        assert memory.recall(everything("you", "me")) == [Recalled(mine), Recalled(theirs)]
        assert memory.recall(everything("nobody")) == []
        assert memory.recall(MemorySearch(agents=(), query="color")) == []
        assert [each.memory.agent for each in memory.recall(MemorySearch(agents=("you",), query="color"))] == ["you"]
        assert memory.agents() == ["me", "you"]

    def test_only_an_agents_own_row_is_forgotten(self, memory: MemoryBackend) -> None:
        theirs = memory.store(note("color", "red", agent="you"))
        memory.store(note("shape", "round"))

        assert not memory.forget("me", "color")
        assert memory.forget("me", "shape")
        assert not memory.forget("me", "shape")
        assert memory.recall(everything("me", "you")) == [Recalled(theirs)]
        assert memory.recall(MemorySearch(agents=("me",), query="round")) == []
        assert memory.agents() == ["you"]

    def test_forget_with_a_time_keeps_later_memories(self, memory: MemoryBackend) -> None:
        memory.store(note("color", at=2.0))

        assert not memory.forget("me", "color", written_by=1.9)
        assert memory.forget("me", "color", written_by=2.0)

    def test_a_forgotten_key_can_be_used_again(self, memory: MemoryBackend) -> None:
        first = memory.store(note("color", "blue"))
        memory.forget("me", "color")

        second = memory.store(note("color", "red", at=7.0))

        assert (second.id != first.id, second.created_at) == (True, 7.0)
        assert memory.recall(MemorySearch(agents=("me",), query="blue red")) == [Recalled(second, 0.5)]

    def test_without_a_question_the_newest_come_first(self, memory: MemoryBackend) -> None:
        for key, at in (("b", 1.0), ("a", 1.0), ("c", 3.0), ("d", 2.0)):
            memory.store(note(key, at=at))

        assert keys(memory.recall(everything())) == ["c", "d", "a", "b"]
        assert keys(memory.recall(MemorySearch(agents=("me",), limit=2))) == ["c", "d"]
        assert keys(memory.recall(MemorySearch(agents=("me",), query=" *?! ", limit=2))) == ["c", "d"]

    def test_times_and_categories_narrow_every_search(self, memory: MemoryBackend) -> None:
        for key, at, category in (("a", 1.0, "core"), ("b", 2.0, "conversation"), ("c", 3.0, "core"), ("d", 4.0, "x")):
            memory.store(note(key, "same words", at=at, category=category))

        for query in ("", "words"):
            assert set(keys(memory.recall(MemorySearch(agents=("me",), query=query, since=2.0, until=3.0)))) == {
                "b",
                "c",
            }
            assert set(keys(memory.recall(MemorySearch(agents=("me",), query=query, since=3.5)))) == {"d"}
            found = memory.recall(MemorySearch(agents=("me",), query=query, without=("conversation", "x")))
            assert set(keys(found)) == {"a", "c"}

    def test_the_best_fitting_come_first_with_scores_that_fall(self, memory: MemoryBackend) -> None:
        memory.store(note("deploy", "The service deploys to eu-west-1 every Friday"))
        memory.store(note("friday", "On Friday there is cake"))
        memory.store(note("color", "blue"))

        found = memory.recall(MemorySearch(agents=("me",), query="When is the Friday deploy?"))
        scores = [each.score or 0.0 for each in found]

        assert keys(found) == ["deploy", "friday"]
        assert 1 >= scores[0] > scores[1] > 0
        assert memory.recall(MemorySearch(agents=("me",), query="when Friday", limit=1))[0].score == 0.5

    def test_all_words_of_a_question_in_the_one_row_that_has_them_fit_completely(self, memory: MemoryBackend) -> None:
        row = memory.store(note("naïve_plan", "Größe: 10 km"))

        assert memory.recall(MemorySearch(agents=("me",), query="NAIVE grosse?")) == [Recalled(row, 1.0)]

    @pytest.mark.parametrize(
        ("query", "content"),
        [
            ("deploy", "deployment notes"),
            ("部署", "每周五部署服务"),
            ("C++", "written in C"),
            ("user@example.org", "mail to user at example org"),
            ("don't", "don't"),
        ],
    )
    def test_words_are_found_in_many_forms(self, memory: MemoryBackend, query: str, content: str) -> None:
        memory.store(note("k", content))

        assert keys(memory.recall(MemorySearch(agents=("me",), query=query))) == ["k"]

    @pytest.mark.parametrize(("query", "content"), [("de", "deployment"), ("ployment", "deployment"), ("no", "yes")])
    def test_parts_of_words_are_not_found(self, memory: MemoryBackend, query: str, content: str) -> None:
        memory.store(note("k", content))

        assert memory.recall(MemorySearch(agents=("me",), query=query)) == []

    @pytest.mark.parametrize(
        "query",
        [
            '"',
            "'; DROP TABLE memories; --",
            "a AND",
            "NOT",
            "NEAR(a b",
            "key:*",
            "(((",
            "a* OR ^b",
            "x\0y",
            "-",
            "{a}:b",
        ],
    )
    def test_a_query_is_matched_as_words_without_operators(self, memory: MemoryBackend, query: str) -> None:
        row = memory.store(note("k", f"before {query} after"))

        assert [each.memory for each in memory.recall(MemorySearch(agents=("me",), query=query))] == [row]

    @pytest.mark.parametrize("agent", ["..", "../../etc/passwd", "a/b", "A b", "", "con\0", "x" * 300, "ä", "~0"])
    def test_a_name_is_never_a_path(self, memory: MemoryBackend, tmp_path: Path, agent: str) -> None:
        row = memory.store(note("../../key", agent=agent))

        assert memory.recall(everything(agent)) == [Recalled(row)]
        assert memory.agents() == [agent]
        assert [path for path in tmp_path.iterdir() if path.name != "not there yet"] == []
        assert [path for path in (tmp_path / "not there yet").rglob("*") if path.is_dir()] == []


class LastingMemoryContract(MemoryContract):
    """Promises of backends that outlive their process."""

    def test_memories_outlive_the_process(self, tmp_path: Path, memory: MemoryBackend) -> None:
        row = memory.store(note("color", "blue"))

        assert self.open_memory(tmp_path / "not there yet").recall(everything()) == [Recalled(row)]
