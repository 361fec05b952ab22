// SPDX-License-Identifier: Apache-2.0

package exposition

// Description describes one of our own metrics on an agent's page.
type Description struct {
	Name string
	Type Type
	Help string
}

// Descriptions returns our own metrics on the pages of agents, which any flags can show.
func Descriptions() (list []Description) {
	for _, f := range metaFamilies(&Config{Kubernetes: true, Pods: true, Processes: true, Further: true}) {
		list = append(list, Description{f.name, f.typ, f.help})
	}
	return list
}
