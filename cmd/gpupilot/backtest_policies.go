// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/policy"
)

// defaultPolicies are replayed where no policy is given.
//
//go:embed backtest.yaml
var defaultPolicies []byte

// given are the policies of the cluster and of the files, in the order of the
// command line and each with a name of its own.
func (f *backtestFlags) given() (out []policy.Named, err error) {
	var files []string
	read := func(file string, text []byte) error {
		parsed, err := policy.Parse(file, text)
		for range parsed {
			files = append(files, file)
		}
		out = append(out, parsed...)
		return err
	}
	if f.live != nil {
		if err := read(f.seen.object, f.live.object); err != nil {
			return nil, err
		}
	}
	for i, path := range f.policies {
		if slices.Contains(f.policies[:i], path) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		if err := read(path, text); err != nil {
			return nil, err
		}
	}
	distinguish(out, files)
	return out, nil
}

// distinguish gives policies of one name the names of their files, too, and
// numbers where those do not tell them apart either: results go by the name.
func distinguish(all []policy.Named, files []string) {
	count, taken := map[string]int{}, map[string]bool{}
	for i := range all {
		count[all[i].Name]++
	}
	for i := range all {
		name, base := all[i].Name, filepath.Base(files[i])
		if count[name] > 1 {
			all[i].Name = fmt.Sprintf("%s (%s)", name, base)
		}
		for n := 2; taken[all[i].Name]; n++ {
			all[i].Name = fmt.Sprintf("%s (%s, %d)", name, base, n)
		}
		taken[all[i].Name] = true
	}
}

// contenders are our policies, the default ones where none is given, and the
// peers of the classes that they are in.
func (f *backtestFlags) contenders(s *backtest.Study, given []policy.Named) (err error) {
	ours := backtest.Ours
	if len(given) == 0 {
		ours = backtest.OursAtLimit
		if given, err = policy.Parse("default policies", defaultPolicies); err != nil {
			return err
		}
	}
	classes := map[backtest.Class]bool{}
	for i := range given {
		who := ours(given[i].Name, given[i].Compiled)
		classes[who.Class] = true
		s.Ours = append(s.Ours, who)
	}
	if s.High == 0 {
		s.Min, s.Max = widestBounds(given)
	}
	if f.peers == "none" {
		return nil
	}
	grid := backtest.FullGrid()
	if f.quick {
		grid = backtest.QuickGrid()
	}
	families := backtest.Families(f.peers)
	for _, x := range families {
		if !slices.Contains([]string{"all", "hpa", "keda", "kpa"}, x) {
			return fmt.Errorf("--peers %s: want all, none, or some of hpa,keda,kpa", x)
		}
	}
	for _, class := range []backtest.Class{backtest.OnRequests, backtest.OnGPU} {
		if classes[class] {
			s.Peers = append(s.Peers, grid.Peers(families, class)...)
		}
	}
	return nil
}

// widestBounds are what the policies allow between them. No query is simulated
// that could wake one from zero replicas.
func widestBounds(all []policy.Named) (low, high int) {
	low = int(all[0].Policy.Min)
	for i := range all {
		low, high = min(low, int(all[i].Policy.Min)), max(high, int(all[i].Policy.Max))
	}
	return max(1, low), high
}

// quickHelp is the help of --quick, with the sizes of the grids.
func quickHelp() string {
	return fmt.Sprintf("a first look: %d of the peers' settings instead of %d. The gaps between them flatter the policies; publish nothing from it",
		len(backtest.QuickGrid().Peers(nil, "")), len(backtest.FullGrid().Peers(nil, "")))
}
