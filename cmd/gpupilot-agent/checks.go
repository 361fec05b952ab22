// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/agent"
)

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
