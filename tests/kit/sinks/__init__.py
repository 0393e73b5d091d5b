"""Simulated lives of a broker whose acknowledged records are stored outside of its data folder: in
log objects, or at followers (kafkawire.log.append.object_sink, follower_sink)."""
