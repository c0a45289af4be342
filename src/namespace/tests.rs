//! The promises of the namespace, one test each, over the memory engine and backing files in a temporary directory.
//!
//! Every test ends with a check of the whole volume, under the mount and after it: see [`world::World::finish`].

mod access;
mod bytes;
mod counts;
mod fenced;
mod grown;
mod links;
mod listing;
mod races;
mod renames;
mod strategies;
mod times;
mod unlinked;
mod waiting;
mod world;
mod xattrs;
