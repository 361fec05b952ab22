// SPDX-License-Identifier: Apache-2.0

package webui

import "testing"

// Only this machine's own addresses need no warning without authentication.
func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.0.0.9:1": true, "[::1]:8080": true, "localhost:8080": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "page.example:80": false,
	} {
		if got := IsLoopback(address); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
