"""A project with 17 tests on a broker each, as users of the pytest plugin write them.

tests/testing/test_sample_project.py copies its test file into a folder and runs pytest there.
"""
