"""Files as earlier and present versions of the project wrote them, opened by tests for ever."""
