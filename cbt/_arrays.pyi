OP_CODES: dict[str, int]
