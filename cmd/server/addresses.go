package main

import (
	"errors"
	"net"
	"strconv"
	"strings"
)

// isLoopback reports whether only this machine reaches an address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// portInRange reports whether the port of an address is none, a name, or a
// number that a port can have.
func portInRange(address string) bool {
	_, port, _ := net.SplitHostPort(address)
	n, err := strconv.Atoi(port)
	return err == nil && n >= 0 && n <= 65535 || errors.Is(err, strconv.ErrSyntax)
}

// isPort reports whether the port of an address is a number, or the name of a service.
func isPort(address string) bool {
	_, port, _ := net.SplitHostPort(address)
	if _, err := strconv.Atoi(port); err == nil || errors.Is(err, strconv.ErrRange) {
		return true
	}
	_, err := net.LookupPort("ip", port) // of TCP or UDP
	return err == nil
}

// hasPort reports whether address is host:port, or dns:///host:port as gRPC takes it.
func hasPort(address string) bool {
	address = strings.TrimPrefix(address, "dns:///")
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != "" && portInRange(address) && isPort(address)
}
