// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// some returns processes of each kind: one with compute, one with graphics and
// unknown memory, one with both.
func some() []gpu.Process {
	return []gpu.Process{
		{PID: 4711, Type: gpu.Compute, Memory: gpu.Read(1 << 30), Utilization: gpu.Read(.5)},
		{PID: 4712, Type: gpu.Graphics, Utilization: gpu.Read(0)},
		{PID: 4713, Type: gpu.Compute | gpu.Graphics, Memory: gpu.Read(100 << 20), Utilization: gpu.Read(.25)},
	}
}

// listed waits until the GPU's processes equal want.
func (b *bench) listed(t *testing.T, uuid string, want []gpu.Process) {
	t.Helper()
	eventually(t, func() string {
		got, err := b.Reader.(gpu.ProcessReader).Processes(uuid)
		if err != nil {
			return err.Error()
		}
		if got.Times == b.Control.NoProcessTimes {
			return fmt.Sprintf("utilisation is told: %v", got.Times)
		}
		want := slices.Clone(want)
		for i := range want {
			if !got.Times {
				want[i].Utilization = gpu.Reading{}
			}
		}
		if !slices.Equal(got.List, want) {
			return fmt.Sprintf("processes %+v\n     want %+v", got.List, want)
		}
		return ""
	})
}

func processes(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	b.Control.SetProcesses(0, nil)
	b.Control.SetProcesses(1, nil)
	b.listed(t, gpus[0].UUID, nil)
	b.Control.SetProcesses(0, some())
	b.listed(t, gpus[0].UUID, some())
	b.listed(t, gpus[1].UUID, nil)
	// One is busier, one less busy, one has ended.
	next := some()[:2]
	next[0].Utilization, next[1].Utilization = gpu.Read(0), gpu.Read(.75)
	b.Control.SetProcesses(0, next)
	b.listed(t, gpus[0].UUID, next)
	_, err := b.Reader.(gpu.ProcessReader).Processes("GPU-ffffffff-ffff-ffff-ffff-ffffffffffff")
	if !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("of an unknown device: %v, want ErrUnknownDevice", err)
	}
}

func lostProcesses(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	b.Control.SetProcesses(0, some())
	b.Control.SetProcesses(1, some())
	b.listed(t, gpus[1].UUID, some())
	b.Control.Lose(1)
	if got, err := b.Reader.(gpu.ProcessReader).Processes(gpus[1].UUID); !errors.Is(err, gpu.ErrLost) || got.List != nil {
		t.Errorf("a lost GPU has processes %+v, error %v", got, err)
	}
	b.listed(t, gpus[0].UUID, some())
}

// hungProcesses asks for GPU 1's processes while a read of GPU 0 hangs, and
// reads GPU 1 while asking for GPU 0's does.
func hungProcesses(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	b.Control.SetProcesses(1, some())
	b.listed(t, gpus[1].UUID, some())
	release := sync.OnceFunc(b.Control.Hang(0))
	defer release()
	var hung sync.WaitGroup
	hung.Go(func() { _, _ = b.Reader.(gpu.ProcessReader).Processes(gpus[0].UUID) })
	hung.Go(func() {
		var v gpu.Values
		_ = b.Reader.Read(gpus[0].UUID, gpu.SetOf(steady()...), &v) // a reader may return an error
	})
	free := make(chan struct{})
	go func() {
		defer close(free)
		b.listed(t, gpus[1].UUID, some())
		b.healthy(t, gpus[1].UUID)
	}()
	select {
	case <-free:
	case <-time.After(patience):
		t.Error("GPU 1 hangs with GPU 0")
	}
	release()
	hung.Wait()
}
