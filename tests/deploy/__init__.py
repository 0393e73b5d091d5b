"""Tests of what a release ships: the image, docker-compose.yml, deploy/."""
