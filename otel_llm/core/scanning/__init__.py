"""The kernels on bytes of OTLP trace export requests: the scan into columns, and the price of small parts."""
