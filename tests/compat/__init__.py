"""The matrix of compatibility: packages that stream replies, each bare and recorded, against one fake of all wires."""
