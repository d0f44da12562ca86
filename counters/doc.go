// Package counters is the contract between limiters and stores: requests and
// decisions, keys, the calendar of slots, expiry, and the interfaces Store and
// StateStore. It talks to no network.
//
// A Store keeps counters that expire. A StateStore keeps small values that
// compare-and-swap replaces. Every operation is atomic per key and ends by its
// context's deadline.
//
// To limit, start with packages subwindow or cas. To write a store, start with
// Store and StateStore, and test it with package storetest.
package counters
