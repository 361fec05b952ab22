// SPDX-License-Identifier: Apache-2.0

package view

import "slices"

// NamespacesSeen returns the namespaces in the view, sorted.
func (v *View) NamespacesSeen() []string {
	found := map[string]bool{}
	for i := range v.Workloads {
		found[v.Workloads[i].Namespace] = true
	}
	for i := range v.HPAs {
		found[v.HPAs[i].Namespace] = true
	}
	for i := range v.Recent {
		found[v.Recent[i].Namespace] = true
	}
	for i := range v.Targets {
		if ns := v.Targets[i].Namespace; ns != "" {
			found[ns] = true
		}
	}
	for i := range v.Nodes {
		for j := range v.Nodes[i].GPUs {
			for _, o := range v.Nodes[i].GPUs[j].Owners {
				found[o.Namespace] = true
			}
		}
	}
	out := make([]string, 0, len(found))
	for ns := range found {
		out = append(out, ns)
	}
	slices.Sort(out)
	return out
}

// Only returns the part of the view for the given namespaces: their workloads,
// decisions and pods' targets, and the GPUs that their pods hold. Owners from other
// namespaces on a shared GPU are omitted.
func (v *View) Only(namespaces []string) View {
	ours := make(map[string]bool, len(namespaces))
	for _, ns := range namespaces {
		ours[ns] = true
	}
	out := View{
		Time: v.Time, Version: v.Version, Leader: v.Leader, LeaderID: v.LeaderID, MaxAge: v.MaxAge,
		Nodes: []Node{}, Targets: []Target{}, Workloads: []Workload{}, HPAs: []HPA{}, Recent: []Event{},
	}
	for i := range v.Workloads {
		if ours[v.Workloads[i].Namespace] {
			out.Workloads = append(out.Workloads, v.Workloads[i])
		}
	}
	for i := range v.HPAs {
		if ours[v.HPAs[i].Namespace] {
			out.HPAs = append(out.HPAs, v.HPAs[i])
		}
	}
	for i := range v.Recent {
		if ours[v.Recent[i].Namespace] {
			out.Recent = append(out.Recent, v.Recent[i])
		}
	}
	for i := range v.Targets {
		if ours[v.Targets[i].Namespace] {
			out.Targets = append(out.Targets, v.Targets[i])
		}
	}
	for i := range v.Nodes {
		if n := v.Nodes[i].Only(ours); len(n.GPUs) > 0 {
			out.Nodes = append(out.Nodes, n)
		}
	}
	return out
}

// Only returns the node with the GPUs of the given namespaces. It omits the node's
// labels and its condition, because the right to read a namespace does not include
// nodes.
func (n *Node) Only(ours map[string]bool) Node {
	out := Node{Name: n.Name}
	for _, g := range n.GPUs {
		var owners []Owner
		for _, o := range g.Owners {
			if ours[o.Namespace] {
				owners = append(owners, o)
			}
		}
		if len(owners) > 0 {
			g.Owners = owners
			out.GPUs = append(out.GPUs, g)
		}
	}
	return out
}
