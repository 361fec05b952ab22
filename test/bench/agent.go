// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

const (
	gpus      = 8
	instances = 7 // MIG instances of each GPU, where it has any
	sharers   = 4 // containers that share a GPU, where some do
)

// collectorsFile has the 40 fields.
//
//go:embed collectors.csv
var collectorsFile []byte

// shape is a node as the agent's specification measures one. For a scrape by one
// saturating keep-alive client, the peer, dcgm-exporter 4.8.2 with the same series on
// an idle 2-core machine, takes 3.3, 19 and 36 ms.
type shape struct {
	name    string
	mig     bool
	virtual bool // series for each of a GPU's sharers
	dcgm    bool // on the fake libdcgm, also without MIG

	barTick float64 // ms of CPU for one collection, on the reference machine
}

func shapes() []shape {
	return []shape{
		{name: "8 GPUs x 40 fields with pods", barTick: 0.5},
		{name: "8x7 MIG x 40 fields with pods", mig: true, barTick: 1.5},
		{name: "8 GPUs x 4 sharers x 40 fields", virtual: true, barTick: 1.0},
	}
}

// entities is how many devices, or shares of them, have series.
func (s shape) entities() int {
	switch {
	case s.mig:
		return gpus * instances
	case s.virtual:
		return gpus * sharers
	}
	return gpus
}

// grants gives each device, or each share of it, to a pod.
func (s shape) grants() []agentrig.Grant {
	var out []agentrig.Grant
	add := func(resource, id string) {
		out = append(out, agentrig.Grant{
			Namespace: "inference", Pod: fmt.Sprintf("llm-7d9c8b6f5-%05d", len(out)), Container: "server", Resource: resource, DeviceID: id,
		})
	}
	for i := range gpus {
		name := "nvidia" + strconv.Itoa(i)
		switch {
		case s.mig:
			for k := range instances {
				add("nvidia.com/mig-1g.18gb", fmt.Sprintf("%s/gi%d", name, 7+k))
			}
		case s.virtual:
			for k := range sharers {
				add("nvidia.com/gpu", fmt.Sprintf("%s/vgpu%d", name, k))
			}
		default:
			add("nvidia.com/gpu", name)
		}
	}
	return out
}

// library is the one that gives 40 fields: NVML has fewer for MIG instances,
// where DCGM repeats their GPU's.
func (s shape) library(bin, dir string) (*agentrig.Library, error) {
	state := fmt.Sprintf("gpus %d\ngpu * util 57\ngpu * energy 123456789\n", gpus)
	l := agentrig.NVML(bin, dir)
	if s.mig || s.dcgm {
		l = agentrig.DCGM(bin, dir)
	}
	if s.mig {
		state += fmt.Sprintf("gpu * mig 1g.18gb %d\n", instances)
	}
	return l, l.Set(state)
}

// node is an agent, what it reads and whom it asks.
type node struct {
	*agentrig.Agent
	library *agentrig.Library
	kubelet *agentrig.Kubelet
	dir     string
}

// startNode starts a node of a shape and waits until it shows every pod.
func startNode(ctx context.Context, cfg config, s shape, extra agentrig.Config) (*node, error) {
	n := &node{}
	if err := n.start(ctx, cfg, s, extra); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

func (n *node) start(ctx context.Context, cfg config, s shape, extra agentrig.Config) (err error) {
	if n.dir, err = os.MkdirTemp("", "gpupilot-bench-"); err != nil {
		return err
	}
	if n.library, err = s.library(cfg.bin, n.dir); err != nil {
		return err
	}
	if n.kubelet, err = agentrig.StartKubelet(filepath.Join(n.dir, "kubelet.sock"), s.grants()); err != nil {
		return err
	}
	collectors := filepath.Join(n.dir, "collectors.csv")
	if err := os.WriteFile(collectors, collectorsFile, 0o600); err != nil {
		return err
	}
	args, env := n.kubelet.Args(), append(n.library.Env(), "NODE_NAME=gpu-node-0001")
	if extra.Foreign {
		libraries := filepath.Join(n.dir, "lib")
		if err := agentrig.LinkLibraries(cfg.bin, libraries); err != nil {
			return err
		}
		args = append(args, "--kubernetes-gpu-id-type", "device-name")
		env = append(env, "LD_LIBRARY_PATH="+libraries, agentrig.NoValidation)
	} else {
		extra.Binary = filepath.Join(cfg.bin, "gpupilot-agent")
		args = append(args, n.library.Args()...)
	}
	extra.Args = slices.Concat(args, []string{"-f", collectors}, extra.Args)
	extra.Env = append(env, extra.Env...)
	if s.virtual {
		extra.Args = append(extra.Args, "--kubernetes-virtual-gpus")
	}
	if n.Agent, err = agentrig.Start(ctx, extra); err != nil {
		return err
	}
	return n.Await(ctx, time.Minute, func(page string) bool {
		for _, g := range s.grants() {
			if !strings.Contains(page, `pod="`+g.Pod+`"`) {
				return false
			}
		}
		return strings.Count(page, "\nDCGM_FI_DEV_FB_USED{") >= s.entities()
	})
}

func (n *node) stop() error {
	var err error
	if n.Agent != nil {
		err = n.Agent.Stop()
	}
	if n.kubelet != nil {
		n.kubelet.Stop()
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}
