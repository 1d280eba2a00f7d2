//! Passes over the graph.
