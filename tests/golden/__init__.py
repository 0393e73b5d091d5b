"""Files written by earlier and current versions, which every later version must open."""
