"""Trial `settings`: wrong and extreme values of every setting, by every way to give one."""
