"""The client library against a real tritonserver whose model `vlm` echoes."""

import asyncio
import contextlib
import hashlib
import io
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from PIL import Image, ImageOps

from client import AsyncTextStream, AsyncVlmClient, RetryPolicy, VlmClient, VlmError
from client.request import image_bytes
from client.serving.server import Endpoints, Server
from tests.conftest import ROOT, echo_output, free_ports
from tests.waiting import until


@pytest.fixture(params=["grpc", "http"])
def vlm(request: pytest.FixtureRequest, echo_server: Endpoints):
    with VlmClient(getattr(echo_server, request.param)) as client:
        yield client


def cancellations(vlm: VlmClient) -> int:
    return int(vlm.generate("cancellations").text)


def await_cancellations(vlm: VlmClient, wanted: int) -> None:
    assert until(lambda: cancellations(vlm) >= wanted, seconds=10), "the server never saw the cancellation"


def digest(image: bytes) -> str:
    return hashlib.sha256(image).hexdigest()[:8]


def test_generate_returns_text_usage_and_timing(vlm):
    answer = vlm.generate("Hello there")
    assert answer.text.startswith("Hello there images=[]")
    assert answer.finish_reason == "stop"
    assert (answer.usage.num_input_tokens, answer.usage.num_output_tokens) == (7, 3)
    assert (answer.timing.queue_ms, answer.timing.decode_ms, answer.timing.total_ms) == (1.5, None, 4.0)


def test_stream_yields_pieces_and_then_the_same_answer(vlm):
    with vlm.stream("one two three") as pieces:
        got = list(pieces)
    assert got[:3] == ["one", " two", " three"]
    assert pieces.answer == vlm.generate("one two three")


def test_text_in_other_scripts_survives(vlm):
    assert vlm.generate("Was ist das? 这是什么 🙂").text.startswith("Was ist das? 这是什么 🙂 ")


def test_sampling_and_scheduling_options_arrive(vlm):
    text = vlm.generate("Hi", max_tokens=5, stop=["."], priority_class="batch", deadline_ms=900).text
    assert 'sampling={"max_tokens": 5, "stop": ["."]}' in text
    assert '"priority_class":"batch"' in text
    assert '"deadline_ms":900' in text


def test_messages_are_sent_as_json(vlm):
    assert vlm.generate(messages=[{"role": "user", "content": "Hi"}]).text.startswith('[{"role": "user"')


def test_images_keep_their_order_over_grpc(echo_server, tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"first")
    picture = Image.new("RGB", (4, 4), "red")
    with VlmClient(echo_server.grpc) as vlm:
        text = vlm.generate("Look", images=[path, b"second", str(path), picture]).text
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    wanted = [digest(b"first"), digest(b"second"), digest(b"first"), digest(buffer.getvalue())]
    assert f"images={wanted}" in text


def test_images_go_over_http_as_base64(echo_server):
    with VlmClient(echo_server.http) as vlm:
        assert (
            f"images={[digest(b'Zmlyc3Q='), digest(b'c2Vjb25k')]}" in vlm.generate("Look", [b"first", b"second"]).text
        )


def test_a_missing_image_file_is_named(vlm):
    with pytest.raises(VlmError, match=r"image /no/such\.png: No such file"):
        vlm.generate("Look", images=["/no/such.png"])


@pytest.mark.parametrize(
    ("code", "status"),
    [("INVALID_ARG", "INVALID_ARGUMENT"), ("UNAVAILABLE", "UNAVAILABLE"), ("NOT_FOUND", "NOT_FOUND")],
)
def test_refusals_keep_status_and_message_over_grpc(echo_server, code, status):
    with VlmClient(echo_server.grpc) as vlm:
        for ask in (vlm.generate, lambda text: list(vlm.stream(text))):
            with pytest.raises(VlmError) as caught:
                ask(f"fail {code} image 2: 3 MB is over the limit")
            assert (caught.value.status, caught.value.message) == (status, "image 2: 3 MB is over the limit")


def test_refusals_keep_their_message_over_http(echo_server):
    with VlmClient(echo_server.http) as vlm:
        for ask in (vlm.generate, lambda text: list(vlm.stream(text))):
            with pytest.raises(VlmError) as caught:
                ask("fail INVALID_ARG image 2: 3 MB is over the limit")
            assert caught.value.message == "image 2: 3 MB is over the limit"


def test_closing_a_stream_cancels_the_request(vlm):
    before = cancellations(vlm)
    with vlm.stream("forever") as pieces:
        assert next(pieces) == "again "
    await_cancellations(vlm, before + 1)


def test_a_dropped_stream_cancels_the_request(vlm):
    before = cancellations(vlm)
    next(vlm.stream("forever"))
    await_cancellations(vlm, before + 1)


def test_a_deadline_ends_and_cancels_the_request(vlm):
    before = cancellations(vlm)
    with pytest.raises(VlmError) as caught:
        list(vlm.stream("forever", timeout_s=0.3))
    assert caught.value.status == "DEADLINE_EXCEEDED"
    await_cancellations(vlm, before + 1)


def count(server: Endpoints, what: str) -> int:
    with VlmClient(server.grpc) as vlm:
        return int(vlm.generate(what).text)


@contextlib.contextmanager
def all_stopped(server: Endpoints, requests: int) -> Iterator[None]:
    """So many are stopped inside, and none has its call cancelled."""
    before, cut = count(server, "cancellations"), count(server, "cut")
    yield
    assert until(lambda: count(server, "cancellations") == before + requests, 10)
    assert count(server, "cut") == cut


def test_streams_over_grpc_that_are_left_are_stopped_and_not_cancelled(echo_server):
    with all_stopped(echo_server, 2), VlmClient(echo_server.grpc) as vlm:
        with vlm.stream("forever") as pieces:
            next(pieces)
        with pytest.raises(VlmError, match=r"no answer within 0\.\d+ s \(timeout_s\)"):
            list(vlm.stream("forever", timeout_s=0.3))


def test_a_client_that_closes_stops_what_runs(echo_server):
    async def talk() -> None:
        async with AsyncVlmClient(echo_server.grpc) as vlm:
            pieces = vlm.stream("forever")
            await anext(pieces)
            async for _ in vlm.stream("forever"):  # and dropped
                break
        await pieces.aclose()  # too late to do anything
        with pytest.raises(VlmError, match="the stream was closed"):
            await anext(pieces)
        with pytest.raises(VlmError, match="the client is closed"):
            vlm.stream("forever")

    with all_stopped(echo_server, 4):
        with VlmClient(echo_server.grpc) as vlm:
            pieces = vlm.stream("forever")
            next(pieces)
            next(vlm.stream("forever"))  # dropped
        pieces.close()
        with pytest.raises(VlmError, match="the client is closed"):
            vlm.stream("forever")
        asyncio.run(talk())


@pytest.mark.parametrize("make", [VlmClient, AsyncVlmClient])
def test_a_request_that_heeds_no_stop_is_cancelled(echo_server, make):
    """`count` does not look whether it should stop."""

    async def leave() -> None:
        async with AsyncVlmClient(echo_server.grpc) as vlm, vlm.stream("count 500 10") as pieces:
            await anext(pieces)

    before = time.monotonic()
    if make is AsyncVlmClient:
        asyncio.run(leave())
    else:
        with VlmClient(echo_server.grpc) as vlm, vlm.stream("count 500 10") as pieces:
            next(pieces)
    assert time.monotonic() - before < 4.5  # it would go on for 5 s


@pytest.mark.server  # where nothing else is at work
def test_many_streams_that_are_left_at_once_are_all_stopped(echo_server):
    """None of them so late that its call is cancelled after all."""

    async def talk() -> None:
        async with AsyncVlmClient(echo_server.grpc) as vlm:
            streams = [vlm.stream("forever") for _ in range(40)]
            await asyncio.gather(*(anext(stream) for stream in streams))

    with all_stopped(echo_server, 40):
        asyncio.run(talk())
    with all_stopped(echo_server, 20), VlmClient(echo_server.grpc) as vlm:
        streams = [vlm.stream("forever") for _ in range(20)]
        for stream in streams:
            next(stream)


def test_a_reader_is_told_when_its_stream_is_closed_elsewhere(echo_server):
    async def talk() -> None:
        async with AsyncVlmClient(echo_server.grpc) as vlm:
            pieces = vlm.stream("forever")
            reader = asyncio.create_task(drain(pieces))
            await asyncio.sleep(0)
            await pieces.aclose()
            with pytest.raises(VlmError, match="the stream was closed"):
                await asyncio.wait_for(reader, 1)
            with pytest.raises(VlmError, match="the stream was closed"):
                await anext(pieces)

    asyncio.run(talk())
    with VlmClient(echo_server.grpc) as vlm:
        pieces = vlm.stream("forever")
        threading.Timer(0.1, pieces.close).start()
        with pytest.raises(VlmError, match="the stream was closed"):
            list(pieces)


def test_readers_share_a_stream_and_all_see_its_end(echo_server):
    async def talk() -> list[list[str]]:
        async with AsyncVlmClient(echo_server.grpc) as vlm, vlm.stream("count 30 5") as pieces:
            return await asyncio.wait_for(asyncio.gather(drain(pieces), drain(pieces)), 10)

    wanted = {f"{number} " for number in range(30)}
    assert {piece for got in asyncio.run(talk()) for piece in got} - {""} == wanted
    with (
        VlmClient(echo_server.grpc) as vlm,
        vlm.stream("count 30 5") as pieces,
        ThreadPoolExecutor(2) as pool,
    ):
        readers = [pool.submit(list, pieces) for _ in range(2)]
        assert {piece for reader in readers for piece in reader.result(10)} - {""} == wanted


def test_a_cancelled_reader_leaves_its_stream_as_it_is(echo_server):
    """grpc.aio cancels a call with the task that reads it."""

    async def talk() -> list[str]:
        async with AsyncVlmClient(echo_server.grpc) as vlm, vlm.stream("count 60 10") as pieces:
            got = [await anext(pieces)]
            reader = asyncio.create_task(anext(pieces))
            await asyncio.sleep(0)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            return got + await drain(pieces)

    assert asyncio.run(talk())[:60] == [f"{number} " for number in range(60)]


OPEN_AT_EXIT = """
import faulthandler, os, signal, sys, threading
faulthandler.dump_traceback_later(15, exit=True)  # should it hang: where
from client import VlmClient
vlm = VlmClient(sys.argv[1])
pieces = vlm.stream("forever", timeout_s=60)
print(next(pieces))
"""
INTERRUPTED = (
    OPEN_AT_EXIT
    + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
with pieces:
    for _ in pieces:
        pass
"""
)
FORKED = (
    OPEN_AT_EXIT
    + """
if os.fork() == 0:
    signal.alarm(10)
    del pieces
    os._exit(0)
os.wait()
print(next(pieces))
pieces.close()
"""
)


@pytest.mark.parametrize(
    ("program", "ends_with"), [(OPEN_AT_EXIT, ""), (INTERRUPTED, "KeyboardInterrupt\n"), (FORKED, "")]
)
def test_a_program_ends_whatever_becomes_of_its_stream(echo_server, program, ends_with):
    command = [sys.executable, "-c", program, echo_server.grpc]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.startswith("again "), done.stderr
    assert done.stderr.endswith(ends_with), done.stderr
    assert done.stderr.count("Traceback") == bool(ends_with), done.stderr
    assert (done.returncode == 0) is not bool(ends_with)


def test_a_client_that_is_dropped_leaves_no_thread(echo_server):
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("vlm-") and thread not in before]

    before = list(threading.enumerate())
    vlm = VlmClient(echo_server.grpc)
    assert vlm.generate("Hi").text
    assert threads()
    del vlm
    assert until(lambda: not threads(), 5)


def test_a_stream_that_is_dropped_with_its_client_is_stopped(echo_server):
    with all_stopped(echo_server, 1):
        for _ in VlmClient(echo_server.grpc).stream("forever"):
            break


def test_a_stream_that_nobody_reads_is_stopped_in_time(echo_server):
    with all_stopped(echo_server, 1), VlmClient(echo_server.grpc) as vlm:
        pieces = vlm.stream("forever", timeout_s=0.5)
        assert next(pieces) == "again "
        before = count(echo_server, "cancellations")
        assert until(lambda: count(echo_server, "cancellations") == before + 1, 10)
        with pytest.raises(VlmError, match=r"no answer within 0\.\d+ s \(timeout_s\)|the request was cancelled"):
            list(pieces)


def test_a_text_that_is_none_is_not_taken_for_a_closed_client(echo_server):
    with VlmClient(echo_server.grpc) as vlm, pytest.raises(UnicodeEncodeError):
        vlm.generate("\ud800")


def test_a_server_outlives_streams_that_are_left_around_their_end(tmp_path):
    """Cancelled calls end Triton 24.10 here: one of 400 to 2,000."""
    rng = random.Random(0)

    async def leave_early(vlm: AsyncVlmClient) -> None:
        async with vlm.stream("hello you") as pieces:
            reader = asyncio.create_task(drain(pieces))
            await asyncio.sleep(rng.uniform(0, 0.006))  # an answer takes about 2 ms
        await asyncio.wait([reader])
        reader.exception()

    async def talk(url: str) -> str:
        async with AsyncVlmClient(url, retry=RetryPolicy(attempts=1)) as vlm:
            for _ in range(1000):
                await asyncio.gather(*(leave_early(vlm) for _ in range(4)))
            return (await vlm.generate("still there")).text

    with Server(echo_output(tmp_path / "out"), free_ports()) as server:
        assert asyncio.run(talk(server.endpoints.grpc)).startswith("still there")


def test_a_timeout_is_kept_by_a_server_that_hangs(tmp_path):
    @contextlib.contextmanager
    def late() -> Iterator[None]:
        begin = time.monotonic()
        with pytest.raises(VlmError, match=r"no answer within 0\.\d+ s \(timeout_s\)"):
            yield
        assert time.monotonic() - begin < 4

    async def talk(url: str, triton: psutil.Process) -> None:
        async with AsyncVlmClient(url) as vlm:
            with late():
                await vlm.generate("Hi", timeout_s=0.5)
            triton.resume()

    with Server(echo_output(tmp_path / "out"), free_ports()) as server:
        family = psutil.Process().children(recursive=True)
        port = server.endpoints.grpc.rsplit(":", 1)[1]
        (triton,) = [p for p in family if f"--grpc-port={port}" in p.cmdline() and p.name().startswith("tritonserver")]
        triton.suspend()
        with VlmClient(server.endpoints.grpc) as vlm:
            for ask in (vlm.generate, lambda text, **options: list(vlm.stream(text, **options))):
                with late():
                    ask("Hi", timeout_s=0.5)
            triton.resume()
        triton.suspend()
        asyncio.run(talk(server.endpoints.grpc, triton))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 1e10])
def test_a_timeout_that_is_none_is_refused(vlm, timeout_s):
    with pytest.raises(VlmError, match="timeout_s: expected seconds above 0, 1,000,000 at most; got"):
        vlm.generate("Hi", timeout_s=timeout_s)


def test_one_image_in_place_of_a_list_is_refused(vlm):
    with pytest.raises(VlmError, match="images: expected a list of images, got one str"):
        vlm.generate("Look", images="cat.jpg")


def test_a_sampling_parameter_that_is_no_json_is_refused(vlm):
    with pytest.raises(VlmError, match="sampling parameters: Object of type set"):
        vlm.generate("Hi", stop={"."})


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "HSV", "LAB", "L", "RGBA", "P", "1"])
def test_pil_images_of_every_mode_are_sent_as_png(mode):
    sent = Image.open(
        io.BytesIO(image_bytes(Image.new("RGB", (3, 2), "red").convert("LAB" if mode == "LAB" else mode)))
    )
    assert (sent.format, sent.size) == ("PNG", (3, 2))


def test_a_pil_photo_keeps_its_orientation():
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (24, 16)).save(buffer, "JPEG", exif=exif)
    sent = Image.open(io.BytesIO(image_bytes(Image.open(buffer))))
    assert ImageOps.exif_transpose(sent).size == (16, 24)


def test_a_pil_image_without_colours_is_refused_by_its_mode():
    with pytest.raises(VlmError, match="image of mode F"):
        image_bytes(Image.new("F", (2, 2)))


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:9", "http://127.0.0.1:9"])
def test_no_server_says_what_to_do(url):
    with VlmClient(url) as vlm, pytest.raises(VlmError, match="tvlm serve") as caught:
        vlm.generate("Hi")
    assert caught.value.status == "UNAVAILABLE"


def test_a_url_without_scheme_is_refused():
    with pytest.raises(VlmError, match="expected grpc://host:port"):
        VlmClient("localhost:8001")


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_async_client_answers_streams_and_cancels(echo_server, scheme):
    async def talk() -> None:
        async with AsyncVlmClient(getattr(echo_server, scheme)) as vlm:
            answers = await asyncio.gather(*(vlm.generate(f"q{n}") for n in range(8)))
            assert [answer.text.split()[0] for answer in answers] == [f"q{n}" for n in range(8)]
            async with vlm.stream("one two") as pieces:
                assert [piece async for piece in pieces][:2] == ["one", " two"]
            assert pieces.answer == await vlm.generate("one two")
            before = int((await vlm.generate("cancellations")).text)
            async with vlm.stream("forever") as pieces:
                assert await anext(pieces) == "again "
            with VlmClient(getattr(echo_server, scheme)) as other:
                await asyncio.to_thread(await_cancellations, other, before + 1)
            with pytest.raises(VlmError, match="no room") as caught:
                await vlm.generate("fail INVALID_ARG no room")
            assert caught.value.status == "INVALID_ARGUMENT"
            for late in (vlm.generate("forever", timeout_s=0.2), drain(vlm.stream("forever", timeout_s=0.2))):
                with pytest.raises(VlmError) as caught:
                    await late
                # HTTP `generate` takes one response: it refuses a second one at once
                assert caught.value.status == "DEADLINE_EXCEEDED" or "generate" in caught.value.message

    asyncio.run(asyncio.wait_for(talk(), 30))


async def drain(pieces: AsyncTextStream) -> list[str]:
    return [piece async for piece in pieces]


def test_async_client_over_http_says_that_no_server_answers():
    async def talk() -> None:
        async with AsyncVlmClient("http://127.0.0.1:9", retry=RetryPolicy(attempts=1)) as vlm:
            with pytest.raises(VlmError, match="tvlm serve"):
                await vlm.generate("Hi")
            with pytest.raises(VlmError, match="tvlm serve"):
                await drain(vlm.stream("Hi"))

    asyncio.run(talk())
