package subwindow

import "weir/counters"

// New returns a limiter that admits requests while the window's estimate stays
// within the limit. It sets cfg's Width, Slots and Window.
func New(store counters.Store, window Window, cfg counters.SlotConfig) *counters.SlotLimiter {
	cfg.Width, cfg.Slots, cfg.Window = window.Width, window.Slots, window
	return counters.NewSlotLimiter(store, cfg)
}
