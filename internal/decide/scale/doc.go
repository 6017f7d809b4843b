// Package scale decides how many vCPUs ordinary wide guests use, and on which nodes they run.
//
// A guest that has more vCPUs than it gets CPUs loses time to vCPUs that hold locks and do not run. So Decide
// gives each guest a number of vCPUs that follows its demand and what its nodes have for it, as vScale does
// (Cheng, Rao, Lau: EuroSys 2016), and unlike vScale by node: the vCPUs of a cell run on the nodes of that cell
// only. An agent in the guest (package guestagent) takes the other vCPUs out of use.
//
// Divide divides the vCPUs of one guest over nodes by their measured accesses, as vProbe does (Wu and others: CLUSTER
// 2016): those that use much memory are spread evenly, and each is near what it accesses.
//
// Both are exact: shares by a polymatroid, nodes by a flow of least cost. Dividing says when a division is worth it.
// Room host/handoff carries both out.
package scale
