"""ONNX files of a density network, checked against the network before they are written."""

from condens.integrations.onnx.export import export

__all__ = ["export"]
