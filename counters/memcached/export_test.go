package memcached

// BothOpen reports whether single operations and many have a socket each that is open, to
// every server.
func (s *Store) BothOpen() bool {
	for _, cs := range s.members.Load().backends {
		for _, l := range []*lane{&cs.single, &cs.bulk} {
			if !l.pool.Ready(cs.server.network, cs.server.address) {
				return false
			}
		}
	}
	return true
}
