// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// offeredEvery is the time between two requests for what device plugins offer: it changes
// seldom.
const offeredEvery = time.Minute

// inventory compares the GPUs that the library lists with those that the node should have.
type inventory struct {
	listed   []gpu.Device // by the last enumeration; nil: it failed
	onBus    []gpu.BusGPU // at the last enumeration; nil: unknown
	offered  []gpu.DeviceID
	asked    time.Time // for offered
	answers  chan offers
	now      *gpu.Inventory
	unlisted []string // as logged
}

// offers is the answer of one request; ids are nil after a failure: an old kubelet does not
// answer it.
type offers struct{ ids []gpu.DeviceID }

// askOffers asks for what device plugins offer, once a minute.
func (l *loop) askOffers(ctx context.Context, now time.Time) {
	v := &l.inventory
	if l.deps.Offered == nil || !v.asked.IsZero() && now.Sub(v.asked) < offeredEvery {
		return
	}
	v.asked = now
	go func() {
		ctx, cancel := context.WithTimeout(ctx, ownersTimeout)
		defer cancel()
		ids, err := l.deps.Offered(ctx)
		if err != nil {
			ids = nil
		}
		v.answers <- offers{ids} // buffered: the request ends before the next one
	}()
}

func (l *loop) offersAnswered(o offers) {
	l.inventory.offered = o.ids
	l.inventory.take()
}

// takeInventory compares an enumeration's result, and logs once which GPUs it lacks.
func (l *loop) takeInventory(e enumeration) {
	v := &l.inventory
	v.listed, v.onBus = e.devices, e.onBus
	switch {
	case e.err != nil && len(e.devices) == 0:
		v.listed = nil
	case e.devices == nil:
		v.listed = []gpu.Device{}
	}
	before := v.now
	v.take()
	if before == nil || !slices.Equal(before.Unlisted, v.now.Unlisted) || slices.Equal(v.unlisted, v.now.Unlisted) {
		return // a change is logged at the second enumeration with it
	}
	v.unlisted = v.now.Unlisted
	if len(v.unlisted) > 0 {
		l.deps.Log.Warn("GPUs on the PCI bus have NVIDIA's driver, and the GPU library does not list them: see the kernel's log for NVRM and Xid",
			"pci", v.unlisted)
	} else {
		l.deps.Log.Info("the GPU library lists all GPUs of the PCI bus")
	}
}

func (v *inventory) take() {
	v.now = gpu.TakeInventory(v.listed, v.onBus, v.offered)
}

// InventoryDoc is how many whole GPUs the node has by each source. A source that does not
// say is absent.
type InventoryDoc struct {
	Listed      *int       `json:"listed,omitempty"`      // by the GPU library
	Bound       *int       `json:"bound,omitempty"`       // on the PCI bus with NVIDIA's driver
	Allocatable *int       `json:"allocatable,omitempty"` // offered to pods by a device plugin
	Missing     int        `json:"missing"`               // that the library should list and does not
	PCI         []OnBusDoc `json:"pci,omitempty"`
}

// OnBusDoc is a GPU on the PCI bus.
type OnBusDoc struct {
	PCIBusID string `json:"pciBusId"`
	Driver   string `json:"driver,omitempty"` // the kernel's driver, such as nvidia or vfio-pci; excluded; absent: none
	Unlisted bool   `json:"unlisted,omitempty"`
}

func inventoryDoc(v *gpu.Inventory) *InventoryDoc {
	if v == nil {
		return nil
	}
	doc := &InventoryDoc{Listed: count(v.Listed), Bound: count(v.Bound), Allocatable: count(v.Allocatable), Missing: v.Missing()}
	for _, g := range v.OnBus {
		doc.PCI = append(doc.PCI, OnBusDoc{g.PCIBusID, g.Driver, slices.Contains(v.Unlisted, g.PCIBusID)})
	}
	return doc
}
