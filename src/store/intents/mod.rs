//! Intents: a store that changes several documents at one instant, made out of one that changes one at a time.
pub mod decide;
