package hwloc

import "encoding/xml"

// The elements of hwloc's XML that Parse reads (hwloc.dtd of version 1,
// hwloc2.dtd of version 2). Numbers are strings here: a broken one must cost
// only its field, not the document.
type (
	document struct {
		XMLName   xml.Name `xml:"topology"`
		Version   string   `xml:"version,attr"` // absent in version 1
		Objects   []object `xml:"object"`
		Distances []matrix `xml:"distances2"` // version 2
	}
	object struct {
		Type        string     `xml:"type,attr"`
		OSIndex     string     `xml:"os_index,attr"`
		CPUSet      string     `xml:"cpuset,attr"`
		CompleteSet string     `xml:"complete_cpuset,attr"`
		OnlineSet   string     `xml:"online_cpuset,attr"` // version 1
		AllNodes    string     `xml:"complete_nodeset,attr"`
		LocalMemory string     `xml:"local_memory,attr"`
		Depth       string     `xml:"depth,attr"` // of a version 1 cache
		Name        string     `xml:"name,attr"`
		PCIBusID    string     `xml:"pci_busid,attr"`
		PCIType     string     `xml:"pci_type,attr"`
		Pages       []pageType `xml:"page_type"`
		Distances   []matrix1  `xml:"distances"` // version 1
		Objects     []object   `xml:"object"`
	}
	pageType struct {
		Size  string `xml:"size,attr"`
		Count string `xml:"count,attr"`
	}
	// matrix1 is in the order of the objects in the document; figures are
	// multiples of the base.
	matrix1 struct {
		Count   string   `xml:"nbobjs,attr"`
		Base    string   `xml:"latency_base,attr"`
		Figures []figure `xml:"latency"`
	}
	figure struct {
		Value string `xml:"value,attr"`
	}
	matrix struct {
		Type     string   `xml:"type,attr"`
		Name     string   `xml:"name,attr"`
		Indexing string   `xml:"indexing,attr"`
		Indexes  []string `xml:"indexes"`
		Values   []string `xml:"u64values"`
	}
)
