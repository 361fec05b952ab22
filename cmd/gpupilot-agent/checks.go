// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/agent"
)

func checkDevices(p *string) func() error {
	return func() error {
		_, err := agent.ParseSelection(*p)
		return err
	}
}

// isOneEngine checks that a value is the address of one host engine, or empty.
func isOneEngine(p *string) func() error {
	return func() error {
		if strings.ContainsAny(*p, ", ") {
			return errors.New("want the address of one host engine; run an agent for each")
		}
		return nil
	}
}

func checkProfile(p *string) func() error {
	return func() error {
		_, err := names.ParseProfile(*p)
		return err
	}
}
