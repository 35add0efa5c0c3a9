//! Real HTTP requests to a model server on loopback, and what comes of its answers.

mod bodies;
mod failures;
mod properties;
mod requests;
mod streams;
