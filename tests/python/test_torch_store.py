"""The store of a process group, queried by a separate thread."""

import gc
import threading
import weakref

import pytest
import torch.distributed as dist

from pagestream.torch import _store
from pagestream.torch._store import Answer, Questions

# Only a hang takes this long.
SECONDS = 600


@pytest.fixture
def store():
    return dist.HashStore()


def failing(store):
    raise ZeroDivisionError(store)


def test_answers_come_in_the_order_of_the_questions(store):
    questions = Questions(store, 0)
    questions.start()
    answers = [questions.ask(lambda store: store.add("count", 1)) for _ in range(5)]
    assert all(answer.comes_within(SECONDS) for answer in answers)
    assert [answer.value() for answer in answers] == [1, 2, 3, 4, 5]
    questions.end()
    questions.join(SECONDS)
    assert not questions.is_alive()


def test_each_load_has_keys_of_its_own(store):
    prefixes = []
    for _ in range(2):
        questions = Questions(store, 3)
        questions.start()
        assert questions.ask(lambda store: store.set("a", "")).comes_within(SECONDS)
        prefixes.append(questions.prefix)
        questions.end()
        questions.join(SECONDS)
    assert prefixes == ["pagestream/1", "pagestream/2"]
    assert store.check(["pagestream/1/a", "pagestream/2/a"])


def test_an_error_is_raised_where_the_answer_is_taken(store):
    questions = Questions(store, 0)
    questions.start()
    answer = questions.ask(failing)
    assert answer.comes_within(SECONDS)
    with pytest.raises(ZeroDivisionError):
        answer.value()
    # The thread continues.
    after = questions.ask(lambda _: 7)
    assert after.comes_within(SECONDS)
    assert after.value() == 7
    questions.end()
    questions.join(SECONDS)


@pytest.mark.parametrize(("question", "is_kept"), [(lambda store: store.num_keys(), True), (failing, False)])
def test_a_connection_on_which_nothing_has_failed_is_kept(store, question, is_kept):
    questions = Questions(store, 0)
    questions.start()
    assert questions.ask(question).comes_within(SECONDS)
    questions.end()
    questions.join(SECONDS)
    assert len(_store._idle.get(store, [])) == is_kept


def test_a_missing_answer_is_not_waited_for(store):
    questions, goes_on = Questions(store, 0), threading.Event()
    questions.start()
    answer = questions.ask(lambda _: goes_on.wait(SECONDS))
    assert not answer.comes_within(0.01)
    goes_on.set()
    assert answer.comes_within(SECONDS)
    questions.end()
    questions.join(SECONDS)


def test_an_error_is_gone_with_its_answer(store):
    """The traceback refers to the caller's objects, for example to an iterator that must be closed."""

    class Held:
        pass

    def take(held):
        answer = Answer(failing)
        answer.find(lambda: store)
        with pytest.raises(ZeroDivisionError):
            answer.value()
        return weakref.ref(answer), weakref.ref(held)

    gc.disable()
    try:
        answer, held = take(Held())
        assert answer() is None
        assert held() is None
    finally:
        gc.enable()
