// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Host runs jobs in processes of their own: CUDA shows a process the GPUs of CUDA_VISIBLE_DEVICES at its start, and one
// MIG instance at most.
type Host struct {
	// Command returns a command that calls Serve.
	Command func() (*exec.Cmd, error)
	Library string // libcuda
	NVML    string
}

// stopTime is how long a process has to end by itself.
const stopTime = 3 * time.Second

// process runs a job with additional environment and hands its messages to handle.
func (h Host) process(ctx context.Context, job Job, env []string, handle func(Message) error) error {
	cmd, err := h.Command()
	if err != nil {
		return failureOf(err)
	}
	job.Library, job.NVML = h.Library, h.NVML
	cmd.Env = append(append(os.Environ(), "CUDA_DEVICE_ORDER=PCI_BUS_ID"), env...)
	var stderr tail
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return failuref(ExitNoGPU, "start the GPU worker: %v. It needs the loader of glibc; load gpu does not run on musl", err)
	}
	if err := json.NewEncoder(in).Encode(job); err != nil {
		_ = cmd.Process.Kill()
	}
	// The end of its input ends the process. One that hangs in the driver is killed.
	done := make(chan struct{})
	var ender sync.WaitGroup
	ender.Go(func() {
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		_ = in.Close()
		select {
		case <-done:
		case <-time.After(stopTime):
			_ = cmd.Process.Kill()
		}
	})
	failure, err := receive(out, handle)
	if err != nil {
		_ = in.Close()
	}
	_, _ = io.Copy(io.Discard, out)
	waitErr := cmd.Wait()
	close(done)
	ender.Wait()
	switch {
	case failure != nil:
		return failure
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case waitErr != nil:
		return failuref(ExitLost, "the GPU worker ended: %v %s", waitErr, stderr.String())
	}
	return nil
}

// receive hands messages to handle until the end of in or a failure.
func receive(in io.Reader, handle func(Message) error) (*Failure, error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var m Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return nil, fmt.Errorf("the GPU worker wrote %q: %w", lines.Text(), err)
		}
		if m.Failure != nil {
			return m.Failure, nil
		}
		if err := handle(m); err != nil {
			return nil, err
		}
	}
	return nil, lines.Err()
}

// tail keeps the end of what a process writes.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 2048
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(p), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.b)) }

// GPUs returns the GPUs that CUDA shows.
func (h Host) GPUs(ctx context.Context) ([]GPU, error) {
	var list []GPU
	err := h.process(ctx, Job{List: true}, nil, func(m Message) error {
		if m.GPU != nil {
			list = append(list, *m.GPU)
		}
		return nil
	})
	return list, err
}

// Choose returns the GPUs of --gpu: all, or indexes, UUIDs, PCI addresses and UUIDs of MIG instances, separated by
// commas.
func (h Host) Choose(ctx context.Context, text string) (chosen, all []GPU, err error) {
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	all, err = h.GPUs(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(words) == 0 || slices.Contains(words, "all") {
		return all, all, nil
	}
	for _, word := range words {
		i := slices.IndexFunc(all, func(g GPU) bool { return g.is(word) })
		switch {
		case i >= 0:
			chosen = append(chosen, all[i])
		case strings.HasPrefix(word, "MIG-"): // CUDA shows one instance only, but takes each by its UUID
			chosen = append(chosen, GPU{Index: -1, UUID: word, MIG: true})
		default:
			var list []string
			for _, g := range all {
				list = append(list, fmt.Sprintf("%d = %s = %s", g.Index, g.UUID, g.PCI))
			}
			return nil, nil, failuref(ExitNoGPU, "no GPU %q; CUDA shows %s", word, strings.Join(list, ", "))
		}
	}
	return chosen, all, nil
}

// is reports whether a word of --gpu means the GPU.
func (g GPU) is(word string) bool {
	if index, err := strconv.Atoi(word); err == nil {
		return index == g.Index
	}
	return len(word) >= 8 && strings.HasPrefix(g.UUID, word) || pciEqual(word, g.PCI)
}

// pciEqual compares PCI addresses; the domain may have four digits, or be missing.
func pciEqual(a, b string) bool {
	long := func(s string) string {
		if strings.Count(s, ":") == 1 {
			s = "0:" + s
		}
		domain, rest, _ := strings.Cut(s, ":")
		return strings.ToLower(strings.TrimLeft(domain, "0") + ":" + rest)
	}
	return strings.Contains(a, ":") && long(a) == long(b)
}

// Run runs the sequences on each of the chosen GPUs at the same time, and hands steps and notes on. All of them end
// when one fails. all are the GPUs that CUDA shows.
func (h Host) Run(ctx context.Context, chosen, all []GPU, sequences []Sequence, b Bounds, handle func(Message) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(chosen))
	var mu sync.Mutex
	var wait sync.WaitGroup
	for i, g := range chosen {
		visible := g.UUID
		if peer := slices.IndexFunc(all, func(o GPU) bool { return o.UUID != g.UUID && !o.MIG && !g.MIG }); peer >= 0 && usesPeer(sequences) {
			visible += "," + all[peer].UUID
		}
		wait.Go(func() {
			job := Job{Index: g.Index, Sequences: sequences, Bounds: b}
			errs[i] = h.process(ctx, job, []string{"CUDA_VISIBLE_DEVICES=" + visible}, func(m Message) error {
				mu.Lock()
				defer mu.Unlock()
				return handle(m)
			})
			if errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wait.Wait()
	var f *Failure
	if err := context.Cause(ctx); errors.As(err, &f) {
		return f // the first one; the others were ended
	}
	return errors.Join(errs...)
}

// usesPeer reports whether a sequence copies between GPUs.
func usesPeer(sequences []Sequence) bool {
	return slices.ContainsFunc(sequences, func(q Sequence) bool {
		return slices.ContainsFunc(q.Kinds, func(name string) bool { return strings.HasPrefix(name, "nvlink") })
	})
}
