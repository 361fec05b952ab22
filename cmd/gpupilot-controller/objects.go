// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/gpupilot/gpupilot/internal/kube"
)

// makeObjects makes the index of the objects that have custom metrics beside pods.
func (p *program) makeObjects() {
	p.objects = kube.NewObjects(kube.ObjectsConfig{
		Watch: p.clients.Watch, Live: p.clients.Live, Mapper: p.clients.Mapper, Log: p.log,
	})
}
