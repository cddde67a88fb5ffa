"""What is not, to the bit, what was saved is refused by name; what is written is whole."""

import errno
import io
import json
import os
import pickle
import socket
import stat
import struct
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers import model_files as files
from helpers import runs

from condens.errors import ArgumentError, ModelFileError
from condens.persistence import load, read, save, write


@pytest.fixture
def path(tmp_path):
    save(files.small(), tmp_path / "model")
    return tmp_path / "model"


def refusal(path, data=None):
    """Return the message with which a file is refused, without its name."""
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelFileError) as raised:
        load(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


class TestDocuments:
    def test_come_back_as_they_were(self, tmp_path):
        tensors = {
            "double": torch.tensor([1e-310, torch.pi, -0.0], dtype=torch.float64),
            "scalar": torch.tensor(3.5),
            "whole": torch.tensor([2**62, -1]),
            "small": torch.tensor([-3], dtype=torch.int8),
            "bytes": torch.get_rng_state(),
            "empty": torch.zeros(0, 2),
            "turned": torch.randn(3, 4).T,
            "spread": torch.ones(1).expand(3, 2),
            "half": torch.randn(5).bfloat16(),
            "truth": torch.tensor([True, False]),
        }
        tensors["shared"] = tensors["turned"][1]
        document = {"list": [1, 0.1, 1e-320, -0.0], "ünï\ud800": {"a": None, "b": True}, "": "\0"}
        write(tmp_path / "file", document, tensors)
        found, others = read(tmp_path / "file")
        assert files.canonical(found) == files.canonical(document)
        assert others.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert others[name].dtype == tensor.dtype
            assert others[name].is_contiguous()
            assert torch.equal(others[name], tensor)
            assert others[name].signbit().equal(tensor.signbit())

    def test_equal_content_gives_equal_bytes(self, tmp_path):
        a, b = torch.ones(2), torch.zeros(3, dtype=torch.float64)
        write(tmp_path / "one", {"x": 1, "y": {"b": 1, "a": 2}}, {"a": a, "b": b})
        write(tmp_path / "two", {"y": {"a": 2, "b": 1}, "x": 1}, {"b": b, "a": a})
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    def test_nothing_at_all(self, tmp_path):
        write(tmp_path / "file", {}, {})
        assert read(tmp_path / "file") == ({}, {})

    @pytest.mark.parametrize("value", [torch.ones(2, dtype=torch.complex64), np.ones(2), "text"])
    def test_tensors_of_another_kind(self, tmp_path, value):
        with pytest.raises(ArgumentError, match=r"^x is .*, but a file holds tensors of real numb"):
            write(tmp_path / "file", {}, {"x": value})

    @pytest.mark.parametrize(
        "value", [torch.empty(2, device="meta"), torch.ones(2).to_sparse()], ids=["meta", "sparse"]
    )
    def test_tensors_without_numbers_of_their_own(self, tmp_path, value):
        with pytest.raises(ArgumentError, match=r"^x (has no memory|is torch.sparse_coo), but a f"):
            write(tmp_path / "file", {}, {"x": value})
        assert not list(tmp_path.iterdir())


class TestDamage:
    @pytest.mark.parametrize(
        "bits", [(5,), pytest.param(range(8), marks=pytest.mark.slow)], ids=["one", "all"]
    )
    def test_bits_of_every_byte_of_the_header(self, path, bits):
        """The fifth is the case of a letter, which JSON and hexadecimal take lightly."""
        data = path.read_bytes()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        for place in range(end):
            for bit in {place % 8, *bits}:
                changed = bytearray(data)
                changed[place] ^= 1 << bit
                assert refusal(path, changed), (place, bit)

    def test_a_bit_of_every_byte_of_the_data(self, path):
        data = path.read_bytes()
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        for place in range(begin, len(data)):
            changed = bytearray(data)
            changed[place] ^= 1 << (place % 8)
            assert "has changed since it was saved" in refusal(path, changed)

    def test_every_length(self, path):
        data = path.read_bytes()
        for length in range(len(data)):
            assert refusal(path, data[:length])

    def test_more_at_the_end(self, path):
        data = path.read_bytes()
        text = refusal(path, data + b"\0")
        assert text.startswith("the file cannot be read (SafetensorError: ")
        assert text.endswith(
            "), but tensors that fill it were expected. "
            "Restore the file from a copy, or save the model again."
        )

    def test_a_number_spelled_otherwise(self, path):
        data = path.read_bytes()
        assert b"1e-05" in data
        assert "has changed" in refusal(path, data.replace(b"1e-05", b"1E-05"))

    def test_no_memory(self, path, monkeypatch):
        def refused(_):
            raise MemoryError

        monkeypatch.setattr(safetensors.torch, "load", refused)
        assert "there is less memory. Free some" in refusal(path)


class TestOtherFiles:
    def test_pickle(self, path):
        for protocol in range(2, 6):
            text = refusal(path, pickle.dumps({"weights": [1.0, 2.0]}, protocol))
            assert text == (
                "the file is a pickle, but a pickle could run code when it is opened, and condens "
                "opens none. Load it where it was made, and save it with condens.persistence.save."
            )

    @pytest.mark.parametrize("new", [True, False])
    def test_what_torch_saves(self, path, new):
        buffer = io.BytesIO()
        torch.save({"x": torch.ones(2)}, buffer, _use_new_zipfile_serialization=new)
        kind = "a zip file, as torch.save makes them of pickles" if new else "a pickle"
        assert refusal(path, buffer.getvalue()).startswith(f"the file is {kind}, but a pickle coul")

    @pytest.mark.parametrize("length", [640, 128 + 256 * 3])
    def test_a_header_whose_length_begins_like_a_pickle(self, path, length):
        write(path, {}, {})
        record, _ = files.arrays(path.read_bytes())
        bare = files.sealed(record, {})
        text = bare[8:].ljust(length)
        path.write_bytes(files.raw(text))
        assert path.read_bytes()[0] == 0x80
        assert read(path) == ({}, {})

    def test_another_safetensors_file(self, path):
        assert refusal(path, files.raw({})).startswith("its header has no entry of condens, but a")
        for metadata in ({}, {"format": "pt"}, [], None, {"condens": 1}):
            assert "has no entry of condens" in refusal(path, files.raw({"__metadata__": metadata}))

    @pytest.mark.parametrize("data", [b"", b"x", b"\0" * 9, b"\0" * 100, b"{" * 100, b"model: mlp"])
    def test_anything(self, path, data):
        assert refusal(path, data)

    def test_missing(self, tmp_path):
        assert refusal(tmp_path / "none") == (
            "the file cannot be read (No such file or directory), but a model file was expected. "
            "Check the path and the permissions."
        )
        with pytest.raises(FileNotFoundError) as raised:
            load(tmp_path / "none")
        assert isinstance(raised.value, ModelFileError)
        assert raised.value.errno == errno.ENOENT
        assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
        (tmp_path / "file").write_text("")
        for path in ("a\0b", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
            with pytest.raises(ModelFileError, match="the file cannot be read") as raised:
                load(path)
            assert not isinstance(raised.value, FileNotFoundError)

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="may read all")
    def test_no_permission(self, path):
        path.chmod(0)
        assert refusal(path).startswith("the file cannot be read (Permission denied), but")

    def test_directory(self, tmp_path):
        assert refusal(tmp_path).startswith("the path is a directory, but a regular file was exp")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no such files")
    def test_devices_pipes_and_sockets_are_not_read(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            for path in (tmp_path / "pipe", tmp_path / "s", "/dev/zero", "/dev/null"):
                with pytest.raises(ModelFileError, match="is a device, a pipe or a socket"):
                    load(path)
                with pytest.raises(ModelFileError, match="is a device, a pipe or a socket"):
                    save(files.small(), path)

    def test_through_a_link(self, path):
        path.with_name("link").symlink_to(path)
        assert files.predictions(load(path.with_name("link"))) == files.predictions(load(path))
        path.unlink()
        assert "No such file" in refusal(path.with_name("link"))


class TestHeader:
    @pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1, 100_000_000, 16 * 2**20 + 1])
    def test_length_that_is_too_large(self, path, length):
        with path.open("wb") as file:
            file.write(struct.pack("<Q", length) + b"{")
            file.truncate(200_000_000)
        assert refusal(path) == (
            f"its header is said to have {length} bytes, but 2 to 16777216 were expected in a file "
            "of 200000000. Restore the file from a copy, or save the model again."
        )

    @pytest.mark.parametrize(
        "data", [b"rooms,lat,lon\n1,2,3\n", bytes(range(200, 256)), b"\0" * 99]
    )
    def test_of_something_else(self, path, data):
        path.write_bytes(data)
        assert refusal(path) == (
            "the file does not begin as a model file does, but a file that condens saved was "
            "expected. Check that it is the model and not the table, or restore it from a copy."
        )

    @pytest.mark.parametrize("change", [-2, -1, 1, 2])
    def test_length_that_is_a_little_wrong(self, path, change):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        text = data[8 : 8 + length].rstrip()
        exact = struct.pack("<Q", len(text)) + text + data[8 + length :]
        path.write_bytes(exact)
        load(path)
        assert refusal(path, struct.pack("<Q", len(text) + change) + exact[8:])

    @pytest.mark.parametrize("levels", [33, 500, 999, 5000, 1_000_000])
    def test_deeply_nested(self, path, levels):
        for opened, closed in (("[", "]"), ('{"a":', "}")):
            text = opened * levels + "1" + closed * levels
            assert refusal(path, files.raw(f'{{"x":{text}}}'.encode()))
            metadata = {"__metadata__": {"condens": f'{{"x":{text}}}'}}
            who = "the entry of condens " if levels < 10**5 else "its header "
            assert refusal(path, files.raw(metadata)).startswith(who)

    def test_keys_that_occur_twice(self, path):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        text, content = data[8 : 8 + length], data[8 + length :]
        doubled = b'{"__metadata__":{},' + text[1:]
        assert "duplicate field `__metadata__`" in refusal(path, files.raw(doubled, content))
        inner = text.replace(rb"{\"document\"", rb"{\"format\":1,\"document\"")
        assert inner != text
        assert "has changed since it was saved" in refusal(path, files.raw(inner, content))

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
    def test_numbers_that_json_has_not(self, path, number):
        record, header, content = files.split(path.read_bytes())
        text = files.canonical(record).replace("1e-05", number)
        metadata = {"__metadata__": {"condens": text}, **header}
        assert refusal(path, files.raw(metadata, content))

    def test_not_utf8(self, path):
        assert "its header cannot be read" in refusal(path, files.raw(b'{"\xff": 1}  '))

    @pytest.mark.parametrize("text", [b"[]", b"1 ", b'"a"', b"null", b"  ", b"{]", b'{"a":1}x'])
    def test_no_object(self, path, text):
        assert refusal(path, files.raw(text))

    @pytest.mark.parametrize(
        "entry",
        [
            None,
            [],
            {},
            {"shape": [-1]},
            {"shape": [-2, -6]},
            {"shape": [2**64]},
            {"shape": [2**32, 2**32]},
            {"shape": [0, 2**62]},
            {"shape": [0, 2**63, 2**63]},
            {"shape": [12.0]},
            {"shape": [True, 12]},
            {"shape": ["12"]},
            {"shape": 12},
            {"shape": [12, [1]]},
            {"shape": [1] * 20 + [12]},
            {"shape": [13]},
            {"dtype": "F16"},
            {"dtype": "F8_E4M3"},
            {"dtype": "object"},
            {"dtype": ["F32"]},
            {"dtype": None},
            {"data_offsets": [48, 0]},
            {"data_offsets": [-48, 0]},
            {"data_offsets": [0, 48, 96]},
            {"data_offsets": [0, 2**63]},
            {"data_offsets": "ab"},
        ],
        ids=str,
    )
    def test_entries(self, path, entry):
        record, header, content = files.split(path.read_bytes())
        name = "head.linear.bias"
        assert header[name]["shape"] == [12]
        header[name] = {**header[name], **entry} if entry else entry
        metadata = {"__metadata__": {"condens": files.canonical(record)}}
        text = refusal(path, files.raw({**metadata, **header}, content))
        assert text.startswith(("the file cannot be read (", f"tensor {name!r} "))

    def test_tensors_that_overlap_or_leave_gaps(self, path):
        record, header, content = files.split(path.read_bytes())
        metadata = {"__metadata__": {"condens": files.canonical(record)}}
        for shift in (-8, 8, 10**30):
            moved = json.loads(json.dumps(header))
            offsets = moved["head.linear.bias"]["data_offsets"]
            moved["head.linear.bias"]["data_offsets"] = [n + shift for n in offsets]
            text = refusal(path, files.raw({**metadata, **moved}, content))
            assert "tensors that fill it were expected" in text
        gap = files.raw({**metadata, **header}, content + b"\0" * 8)
        assert "tensors that fill it were expected" in refusal(path, gap)

    @pytest.mark.parametrize(
        ("dtype", "shape", "size"),
        [("C64", [3], 24), ("F8_E4M3", [3], 3), ("U32", [3], 12), ("F32", [1] * 17, 4)],
    )
    def test_tensors_that_condens_does_not_write(self, path, dtype, shape, size):
        record, header, content = files.split(path.read_bytes())
        end = len(content)
        header["x"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        metadata = {"__metadata__": {"condens": files.canonical(record)}}
        text = refusal(path, files.raw({**metadata, **header}, content + b"\0" * size))
        assert text.startswith("tensor 'x' is torch.")

    def test_truth_values_that_are_neither(self, path):
        write(path, {}, {"x": torch.tensor([True, False])})
        data = path.read_bytes()
        path.write_bytes(data[:-1] + b"\2")
        with pytest.raises(ModelFileError, match="holds a byte other than 0 and 1"):
            read(path)


class TestBehindTheHash:
    """Files whose hash is right, as one who means harm would write them."""

    def test_the_hand_made_file_is_good(self, path):
        before = files.predictions(load(path))
        path.write_bytes(files.sealed(*files.arrays(path.read_bytes())))
        assert files.predictions(load(path)) == before

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, path, value):
        record, tensors = files.arrays(path.read_bytes())
        tensors["head.linear.bias"][3] = value
        assert refusal(path, files.sealed(record, tensors)) == (
            "tensor 'head.linear.bias' holds NaN or infinity, but finite numbers were expected. "
            "Restore the file from a copy, or save the model again."
        )

    @pytest.mark.parametrize("value", [0.0, -0.0, -1.0])
    def test_scale(self, path, value):
        record, tensors = files.arrays(path.read_bytes())
        tensors["condition_scaling.scale"][1] = value
        text = refusal(path, files.sealed(record, tensors))
        assert text.startswith("condition_scaling.scale is not above zero, but a scale divides.")

    @pytest.mark.parametrize("version", [10, 11, 10**30])
    def test_a_newer_version(self, path, version):
        record, tensors = files.arrays(path.read_bytes())
        text = refusal(path, files.sealed({**record, "format": version}, tensors))
        assert "of a newer condens, but condens 0.1.0 reads format 9. Upgrade condens." in text

    @pytest.mark.parametrize("version", [8, 7, 6, 5, 4, 3, 2, 1, 0, -1, -(10**30)])
    def test_an_older_version(self, path, version):
        record, tensors = files.arrays(path.read_bytes())
        text = refusal(path, files.sealed({**record, "format": version}, tensors))
        assert text.startswith(f"the file has format {str(version)[:9]}")
        assert "of an older condens, but condens 0.1.0 reads format 9. Fit the model again" in text

    @pytest.mark.parametrize("version", [None, 1.0, True, "1", [1]])
    def test_a_version_of_another_kind(self, path, version):
        record, tensors = files.arrays(path.read_bytes())
        assert "document, format, sha256, versions were expected" in refusal(
            path, files.sealed({**record, "format": version}, tensors)
        )

    def test_wrong_shapes_and_dtypes(self, path):
        record, tensors = files.arrays(path.read_bytes())
        name = "head.linear.weight"
        for changed in (
            tensors[name].T.copy(),
            tensors[name][1:],
            tensors[name].reshape(-1),
            tensors[name][None],
            tensors[name].astype("float64"),
            tensors[name].astype("int64"),
        ):
            text = refusal(path, files.sealed(record, {**tensors, name: changed}))
            assert text.startswith(f"tensor {name!r} has shape {list(changed.shape)} and torch.")
            assert "but [12, 4] and torch.float32 fit." in text

    def test_missing_and_extra_tensors(self, path):
        record, tensors = files.arrays(path.read_bytes())
        for name in tensors:
            rest = {n: t for n, t in tensors.items() if n != name}
            assert refusal(path, files.sealed(record, rest))
        for name in ("more", "head.linear.more", "", "backbone.layers.0.weight.", "networks.0.x"):
            more = {**tensors, name: np.ones(1, "float32")}
            text = refusal(path, files.sealed(record, more))
            assert text.startswith(f"tensor {name!r} is there, but the architecture has no such")

    @pytest.mark.parametrize("size", [-1, 0, 10**12, 2**31, 2**63, 10**40, 1.5, True, "3", None])
    @pytest.mark.parametrize(
        ("part", "name"),
        [
            ("backbone", "inputs"),
            ("backbone", "width"),
            ("backbone", "depth"),
            ("head", "features"),
            ("head", "dimensions"),
            ("head", "n_components"),
        ],
    )
    def test_sizes(self, path, part, name, size):
        record, tensors = files.arrays(path.read_bytes())
        record["document"]["network"][part][name] = size
        text = refusal(path, files.sealed(record, tensors))
        if type(size) is int and 10**6 < size < 10**30:
            assert text.startswith(f"its architecture has {name} {size}, but the tensors of the")

    @pytest.mark.parametrize(
        ("where", "value"),
        [
            (("kind",), "regressor"),
            (("kind",), "os.system"),
            (("kind",), None),
            (("kind",), ["network"]),
            (("network",), None),
            (("network",), []),
            (("network",), {}),
            (("more",), 1),
            (("network", "kind"), "ensemble"),
            (("network", "kind"), "builtins.exec"),
            (("network", "more"), 1),
            (("network", "dtype"), "float64"),
            (("network", "dtype"), "int64"),
            (("network", "dtype"), "load"),
            (("network", "names"), ["a"]),
            (("network", "names"), ["a", "a"]),
            (("network", "names"), "ab"),
            (("network", "names"), [1, 2]),
            (("network", "condition_columns"), None),
            (("network", "condition_columns"), 2),
            (("network", "condition_columns"), [3]),
            (("network", "backbone"), None),
            (("network", "backbone"), {"kind": "custom"}),
            (("network", "backbone", "kind"), "Linear"),
            (("network", "backbone", "kind"), "custom"),
            (("network", "backbone", "activation"), "exec"),
            (("network", "backbone", "activation"), ["silu"]),
            (("network", "backbone", "dropout"), 1.5),
            (("network", "backbone", "dropout"), 0),
            (("network", "backbone", "normalise"), True),
            (("network", "backbone", "normalise"), 0),
            (("network", "backbone", "training"), True),
            (("network", "head", "covariance"), "diagonal"),
            (("network", "head", "covariance"), "nowhere"),
            (("network", "head", "floor"), -1.0),
            (("network", "head", "floor"), "1"),
            (("network", "head", "rank"), 2),
        ],
        ids=str,
    )
    def test_architectures(self, path, where, value):
        record, tensors = files.arrays(path.read_bytes())
        *parents, last = where
        place = record["document"]
        for parent in parents:
            place = place[parent]
        known = place.pop(last, None)
        if known is not None:
            assert refusal(path, files.sealed(record, tensors))
        place[last] = value
        assert refusal(path, files.sealed(record, tensors))

    def test_many_layers_are_not_built(self, path):
        """A depth that the number of elements would allow, but not that of the tensors."""
        record, tensors = files.arrays(path.read_bytes())
        record["document"]["network"]["backbone"]["depth"] = 1_000_000
        tensors["more"] = np.zeros(2_000_000, "float32")
        text = refusal(path, files.sealed(record, tensors))
        assert text.startswith("its architecture has depth 1000000, but the tensors of the file al")

    def test_an_ensemble_inside_an_ensemble(self, tmp_path):
        save(files.ensemble(), tmp_path / "model")
        record, tensors = files.arrays((tmp_path / "model").read_bytes())
        network = record["document"]["network"]
        for members in ([], [network], [*network["members"], network["members"][0]], None, 3):
            network = {**network, "members": members}
            changed = {**record, "document": {**record["document"], "network": network}}
            assert refusal(tmp_path / "model", files.sealed(changed, tensors))


class TestWriting:
    def test_replaces_and_leaves_nothing_else(self, path):
        write(path, {"a": 1}, {})
        assert read(path)[0] == {"a": 1}
        assert list(path.parent.iterdir()) == [path]

    def test_a_link_stays_and_its_file_is_replaced(self, path):
        (path.parent / "deep").mkdir()
        link = path.parent / "deep" / "link"
        link.symlink_to("../model")
        write(link, {"a": 1}, {})
        assert link.is_symlink()
        assert read(path)[0] == {"a": 1}
        assert list(link.parent.iterdir()) == [link]

    def test_places_that_are_no_files(self, tmp_path):
        (tmp_path / "file").write_text("mine")
        (tmp_path / "nowhere").symlink_to(tmp_path / "none")
        (tmp_path / "circle").symlink_to(tmp_path / "circle")
        before = sorted(tmp_path.iterdir())
        for path, text in (
            (tmp_path, "the path is a directory, but a regular file was expected. Name a file."),
            (tmp_path / "nowhere", "the path is a link to nothing, but a file or a new name was"),
            (tmp_path / "circle", "the path is a link to nothing, but a file or a new name was"),
            (tmp_path / "circle" / "x", "the file cannot be written"),
            (tmp_path / "none" / "x", "the path is in no directory, but .*none was expected to be"),
            (tmp_path / "file" / "x", "the path is in no directory"),
            (tmp_path / ("x" * 300), "the file cannot be written .File name too long., but a mod"),
            ("a\0b", "the file cannot be written .*null"),
        ):
            with pytest.raises(ModelFileError, match=text) as raised:
                write(path, {}, {})
            assert str(raised.value).startswith(f"{path}: ")
        assert sorted(tmp_path.iterdir()) == before
        assert (tmp_path / "file").read_text() == "mine"

    def test_the_longest_name(self, tmp_path):
        write(tmp_path / ("x" * 255), {"a": 1}, {})
        assert read(tmp_path / ("x" * 255))[0] == {"a": 1}

    @pytest.mark.skipif(os.name != "posix", reason="has no such permissions")
    def test_a_private_file_stays_private(self, path):
        path.chmod(0o600)
        write(path, {"a": 1}, {})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_an_interruption_leaves_the_file_before(self, path, monkeypatch):
        before = path.read_bytes()

        def interrupted(_):
            raise KeyboardInterrupt

        for name in ("fsync", "replace"):
            with monkeypatch.context() as patched:
                patched.setattr(os, name, interrupted if name == "fsync" else lambda *_: 1 / 0)
                with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
                    save(files.small(), path)
            assert path.read_bytes() == before
            assert list(path.parent.iterdir()) == [path]

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform == "win32", reason="limits no sizes")
    def test_a_full_disk_leaves_the_file_before(self, path):
        """A limit on the size of files makes the write itself fail."""
        before = path.read_bytes()
        assert runs.finish(runs.save_too_large, path, 10_000) == 3
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]


MOST = 16 * 2**20 - 100


def filled(start, unit, end, length=MOST):
    """Return a text of nearly the largest length."""
    return start + unit * ((length - len(start) - len(end)) // len(unit)) + end


def limited(unit, count=2**19 - 50):
    """Return as many values as are read at all."""
    return f'{{"x":[{",".join([unit] * (count // (1 + unit.count("{") + unit.count("["))))}]}}'


# Headers of 16 MB or of as many values as there may be.
HOSTILE = {
    "objects": lambda: filled('{"x":[', "{},", "{}]}"),
    "lists": lambda: filled('{"x":[', "[],", "[]]}"),
    "numbers": lambda: filled('{"x":[', "0,", "0]}"),
    "nested": lambda: filled('{"x":[', "[" * 29 + "]" * 29 + ",", "0]}"),
    "deep": lambda: filled('{"x":', "[", ""),
    "one key": lambda: filled("{", '"":0,', '"":0}'),
    "keys": lambda: "{" + ",".join(f'"{i}":0' for i in range(1_300_000)) + "}",
    "digits": lambda: filled('{"x":', "9", "}"),
    "long numbers": lambda: filled('{"x":[', "9" * 4300 + ",", "0]}"),
    "a fraction": lambda: filled('{"x":0.', "0", "1}"),
    "an exponent": lambda: filled('{"x":1e', "9", "}"),
    "text": lambda: filled('{"x":"', "a", '"}'),
    "letters": lambda: filled('{"x":"', "\\u00e9", '"}'),
    "nothing": lambda: filled("{", " ", "}"),
    "shape": lambda: filled('{"x":{"dtype":"U8","data_offsets":[0,0],"shape":[', "1,", "1]}}"),
    "tensors": lambda: (
        "{" + ",".join(f'"{i}":{json.dumps(EMPTY)}' for i in range(2**19 // 8)) + "}"
    ),
    "as many objects": lambda: limited("{}"),
    "as many numbers": lambda: limited("0"),
    "as many keys": lambda: "{" + ",".join(f'"{i}":0' for i in range(2**19 - 50)) + "}",
}
EMPTY = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
# The header itself is read of every kind; the entry, by the same reader, of these.
QUICK = ("objects", "deep", "long numbers", "as many keys")


class TestLargeHeaders:
    @pytest.fixture(autouse=True)
    def _quickly(self):
        """A second or two of this thread's time, far below the minutes of an unbounded header."""
        yield
        assert self.seconds < 10.0

    def refused(self, path, data):
        path.write_bytes(data)
        begun = time.thread_time()
        with pytest.raises(ModelFileError) as raised:
            load(path)
        self.seconds = time.thread_time() - begun
        assert len(str(raised.value)) < 1000
        return str(raised.value)

    @pytest.mark.parametrize("kind", HOSTILE)
    def test_as_the_header(self, path, kind):
        assert self.refused(path, files.raw(HOSTILE[kind]().encode()))

    @pytest.mark.parametrize(
        "kind",
        [
            kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow)
            for kind in HOSTILE
            if kind not in ("one key", "keys")
        ],
    )
    def test_as_the_entry_of_condens(self, path, kind):
        text = json.dumps({"__metadata__": {"condens": HOSTILE[kind]()}})
        assert self.refused(path, files.raw(text.encode()))

    @pytest.mark.parametrize("place", ["training", "network", "kind", "more"])
    @pytest.mark.parametrize(
        "value",
        [
            pytest.param([0] * 500_000, id="numbers"),
            pytest.param([{}] * 250_000, id="objects", marks=pytest.mark.slow),
        ],
    )
    def test_behind_the_hash(self, path, place, value):
        record, tensors = files.arrays(path.read_bytes())
        record["document"][place] = {"x": value} if place == "network" else value
        data = files.sealed(record, tensors)
        if place == "training":  # nothing is made of it
            path.write_bytes(data)
            begun = time.thread_time()
            load(path)
            self.seconds = time.thread_time() - begun
        else:
            self.refused(path, data)

    @pytest.mark.parametrize(
        "change",
        [
            lambda network: {**network, "backbone": {**network["backbone"], "depth": 2000}},
            lambda network: {
                "kind": "ensemble",
                "members": [network] * 500,
                "names": network["names"],
            },
            lambda network: {
                "kind": "ensemble",
                "members": [network] * 100_000,
                "names": network["names"],
            },
            lambda network: network,
        ],
        ids=["depth", "members", "many members", "tensors"],
    )
    @pytest.mark.slow
    def test_tensors_without_number(self, path, change):
        record, tensors = files.arrays(path.read_bytes())
        record["document"]["network"] = change(record["document"]["network"])
        more = {f"more{i}": np.zeros(0, "float32") for i in range(2**12 - len(tensors))}
        self.refused(path, files.sealed(record, tensors | more))

    def test_too_many_tensors_are_named(self, path):
        record, tensors = files.arrays(path.read_bytes())
        more = {f"more{i}": np.zeros(0, "float32") for i in range(2**12)}
        text = self.refused(path, files.sealed(record, tensors | more))
        assert f"lists {2**12 + len(tensors)} tensors, but at most 4096 are read" in text

    @pytest.mark.slow
    def test_what_could_not_be_read_is_not_written(self, tmp_path):
        self.seconds = 0.0
        with pytest.raises(ArgumentError, match=r"has 4097 tensors, but at most 4096 go into"):
            write(tmp_path / "file", {}, {str(i): torch.zeros(0) for i in range(4097)})
        with pytest.raises(ArgumentError, match=r"document holds about \d+ values, but at most 52"):
            write(tmp_path / "file", {"x": [0] * 600_000}, {})
        assert not list(tmp_path.iterdir())
        write(tmp_path / "file", {"x": [0] * 500_000}, {str(i): torch.zeros(0) for i in range(999)})
        assert len(read(tmp_path / "file")[0]["x"]) == 500_000

    @pytest.mark.parametrize("document", [{1: 2}, {"a": [{None: 1}]}, {"a": {True: 1}}])
    def test_keys_that_would_come_back_as_text(self, tmp_path, document):
        self.seconds = 0.0
        with pytest.raises(ArgumentError, match=r"document cannot be JSON \(the key .* is no text"):
            write(tmp_path / "file", document, {})
        assert not list(tmp_path.iterdir())
