// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/agent"
)

func checkAddress(p *string) func() error {
	return func() error {
		if _, _, err := net.SplitHostPort(*p); err != nil {
			return fmt.Errorf("want host:port, or :port for all addresses")
		}
		return nil
	}
}

func checkDevices(p *string) func() error {
	return func() error {
		_, err := agent.ParseSelection(*p)
		return err
	}
}

func checkProfile(p *string) func() error {
	return func() error {
		_, err := names.ParseProfile(*p)
		return err
	}
}
